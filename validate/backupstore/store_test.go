package backupstore

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// storeCluster is the cluster that host forms are judged against.
func storeCluster(endpointType, endpoint string) *fleet.Cluster {
	cl := &fleet.Cluster{
		Object: fleet.Object{Kind: "TalosCluster", Name: "prod", Cluster: "prod"},
		Manifest: &v1alpha1.TalosCluster{Spec: v1alpha1.TalosClusterSpec{
			Endpoint: v1alpha1.ClusterEndpoint{Type: endpointType, Address: endpoint},
			Network:  v1alpha1.NetworkSpec{DNSDomain: "K8s.Example.internal."},
		}},
	}
	add := func(name, approval, endpoint, hostname string) {
		cl.Machines = append(cl.Machines, &fleet.Machine{
			Object: fleet.Object{Kind: "TalosMachine", Name: name, Cluster: "prod"},
			Manifest: &v1alpha1.TalosMachine{Spec: v1alpha1.TalosMachineSpec{
				ApprovalState: approval, Endpoint: endpoint, Hostname: hostname,
			}},
		})
	}
	add("cp1", "approved", "192.0.2.11", "prod-cp1.dc.example.com")
	add("w1", "pending", "[2001:db8::21]:50000", "prod-w1")
	add("old", "rejected", "192.0.2.99", "prod-old.dc.example.com")
	return cl
}

// hostForms is the table of host forms of issue 2: every spelling that the S3 client or what it dials through takes.
var hostForms = []struct {
	endpoint string
	want     Where
	why      string
}{
	// Names inside.
	{"minio.storage.svc", Inside, "*.svc"},
	{"https://minio.storage.svc:9000", Inside, "*.svc"},
	{"http://MINIO.Storage.SVC", Inside, "*.svc"},
	{"minio.storage.svc.", Inside, "*.svc"},
	{"minio.storage.svc..", Inside, "*.svc"},
	{"svc", Inside, "*.svc"},
	{"minio.storage.svc.k8s.example.internal", Inside, "*.svc.k8s.example.internal"},
	{"minio.storage.svc.k8s.example.internal.:9000", Inside, "*.svc.k8s.example.internal"},
	{"https://10-244-0-7.storage.pod.k8s.example.internal", Inside, "DNS domain"},
	{"k8s.example.internal", Inside, "DNS domain"},
	{"HTTPS://User:Pass@Minio.K8S.Example.Internal/", Inside, "DNS domain"},
	{"https://minio。storage。svc", Inside, "*.svc"},
	{"https://ｍｉｎｉｏ.storage.ｓｖｃ", Inside, "*.svc"},
	{"https://min\u00adio.storage.svc", Inside, "*.svc"},
	{"  minio.storage.svc  ", Inside, "*.svc"},
	{"https://minio.storage.svc/bucket?x=1#f", Inside, "*.svc"},
	{"//minio.storage.svc", Inside, "*.svc"},
	{"https://s3.example.com@minio.storage.svc", Inside, "*.svc"},
	{"minio_1.storage.svc", Inside, "*.svc"},
	// Addresses in the subnets (the defaults).
	{"10.96.0.10", Inside, "service subnet 10.96.0.0/12"},
	{"10.96.0.10:9000", Inside, "service subnet"},
	{"http://10.111.255.255", Inside, "service subnet"},
	{"https://10.244.3.4:443/", Inside, "pod subnet 10.244.0.0/16"},
	{"https://user@10.244.3.4", Inside, "pod subnet"},
	{"10.96.0.10.", Inside, "service subnet"},
	{"0xA600001", Inside, "10.96.0.1"},
	{"http://0x0a600001:9000", Inside, "10.96.0.1"},
	{"174063617", Inside, "10.96.0.1"},
	{"01230000001", Inside, "10.96.0.1"},
	{"01230000001.", Inside, "10.96.0.1"},
	{"012.0140.0.1", Inside, "10.96.0.1"},
	{"0xa.0x60.0x0.0x1", Inside, "10.96.0.1"},
	{"0XA.96.1", Inside, "10.96.0.1"},
	{"10.6291457", Inside, "10.96.0.1"},
	{"10.96.1", Inside, "10.96.0.1"},
	{"010.96.0.1", Inside, "service subnet"}, // people mean 10.96.0.1, resolvers read 8.96.0.1
	{"10.096.000.001", Inside, "service subnet"},
	{"012.0140.0.01", Inside, "service subnet"},
	{"https://１０.９６.０.１", Inside, "service subnet"},
	{"10｡96｡0｡1", Inside, "service subnet"},
	{"[::ffff:10.96.0.10]", Inside, "service subnet"},
	{"https://[::ffff:a60:a]:9000", Inside, "service subnet"},
	{"::ffff:10.96.0.10", Inside, "service subnet"},
	{"[64:ff9b::10.96.0.10]", Inside, "service subnet"},
	{"[64:ff9b::a60:a]", Inside, "service subnet"},
	{"[2002:a60:a::1]", Inside, "service subnet"},
	{"[::10.96.0.10]", Inside, "service subnet"},
	// The cluster's own machines and endpoint.
	{"192.0.2.11", Inside, "machine cp1"},
	{"https://192.0.2.11:9000", Inside, "machine cp1"},
	{"[::ffff:192.0.2.11]", Inside, "machine cp1"},
	{"0300.0.02.013", Inside, "machine cp1"},
	{"2001:db8::21", Inside, "machine w1"},
	{"[2001:DB8:0:0:0:0:0:21]:9000", Inside, "machine w1"},
	{"[2001:db8::21%25eth0]:9000", Inside, "machine w1"},
	{"2001:db8::21%eth0", Inside, "machine w1"},
	{"prod-cp1.dc.example.com", Inside, "machine cp1"},
	{"https://PROD-CP1.dc.example.com.:9000", Inside, "machine cp1"},
	{"prod-w1", Inside, "machine w1"},
	{"https://api.example.com:9000", Inside, "own endpoint"},
	{"API.example.com.", Inside, "own endpoint"},
	// A rejected machine is none of the cluster's.
	{"192.0.2.99", Outside, ""},
	{"prod-old.dc.example.com", Outside, ""},
	// What can't be told from outside.
	{"minio.minio", Unclear, "two labels"},
	{"http://minio.storage-ns:9000", Unclear, "two labels"},
	{"minio.local", Unclear, "two labels"},
	{"minio", Unclear, "single label"},
	{"https://minio:9000", Unclear, "single label"},
	{"localhost", Unclear, "loopback"},
	{"LOCALHOST.:9000", Unclear, "loopback"},
	{"s3.localhost", Unclear, "loopback"},
	{"localhost.localdomain", Unclear, "loopback"},
	{"ip6-localhost", Unclear, "loopback"},
	{"127.0.0.1:9000", Unclear, "loopback"},
	{"127.1", Unclear, "loopback"},
	{"0x7f000001", Unclear, "loopback"},
	{"[::1]:9000", Unclear, "loopback"},
	{"::1", Unclear, "loopback"},
	{"0.0.0.0", Unclear, "loopback"},
	{"0", Unclear, "loopback"},
	{"[::]", Unclear, "loopback"},
	// Outside.
	{"https://s3.example.com", Outside, ""},
	{"s3.eu-central-1.amazonaws.com", Outside, ""},
	{"https://minio.example.io:9000", Outside, ""},
	{"example.com", Outside, ""},
	{"bücher.example", Unclear, "two labels"},
	{"https://bücher.de", Outside, ""},
	{"203.0.113.5", Outside, ""},
	{"10.112.0.1", Outside, ""},
	{"10.243.255.255", Outside, ""},
	{"10.245.0.0:9000", Outside, ""},
	{"[2001:db8::22]:9000", Outside, ""},
	{"svc.example.com", Outside, ""},
	{"my-svc.example.com", Outside, ""},
	{"minio.storage.svc.example.com", Outside, ""},
	{"notk8s.example.internal", Outside, ""},
	// No endpoint.
	{"", Invalid, "names no host"},
	{"https://", Invalid, "names no host"},
	{":9000", Invalid, "names no host"},
	{".", Invalid, "names no host"},
	{"ftp://s3.example.com", Invalid, "scheme"},
	{"s3://bucket", Invalid, "scheme"},
	{"https://minio svc", Invalid, "neither a URL"},
	{"https://10.96.0.1:port", Invalid, "neither a URL"},
	{"[::ffff:10.96.0.10", Invalid, "neither"},
}

func TestHostForms(t *testing.T) {
	if len(hostForms) < 60 {
		t.Fatalf("%d host forms, want at least 60", len(hostForms))
	}
	cl := storeCluster("node", "api.example.com")
	for _, f := range hostForms {
		v := Judge(cl, f.endpoint)
		if v.Where != f.want || !strings.Contains(v.Why, f.why) {
			t.Errorf("%q: %s (%s), want %s (%s)", f.endpoint, v.Where, v.Why, f.want, f.why)
		}
	}
}

// TestEndpointTypes: a node's or virtual address is the cluster; a load balancer or a DNS name may front other things.
func TestEndpointTypes(t *testing.T) {
	for typ, want := range map[string]Where{
		"node": Inside, "vip": Inside, "loadBalancer": Unclear, "dns": Unclear,
	} {
		for _, form := range []string{"198.51.100.7", "https://198.51.100.7:9000", "[::ffff:198.51.100.7]", "0xc6336407"} {
			if v := Judge(storeCluster(typ, "198.51.100.7"), form); v.Where != want {
				t.Errorf("%s, endpoint type %s: %s, want %s", form, typ, v.Where, want)
			}
		}
		if v := Judge(storeCluster(typ, "lb.example.com"), "LB.example.com:443"); v.Where != want {
			t.Errorf("name, endpoint type %s: %s, want %s", typ, v.Where, want)
		}
	}
}

// TestDeclaredSubnets: a declared range takes the default's place, family by family of what is declared.
func TestDeclaredSubnets(t *testing.T) {
	cl := storeCluster("dns", "api.example.com")
	cl.Manifest.Spec.Network.PodSubnets = []string{"172.20.0.0/16", "fd00:10::/56"}
	for endpoint, want := range map[string]Where{
		"172.20.1.2": Inside, "[fd00:10::5]:9000": Inside, "10.244.0.1": Outside, "10.96.0.1": Inside,
	} {
		if v := Judge(cl, endpoint); v.Where != want {
			t.Errorf("%s: %s, want %s", endpoint, v.Where, want)
		}
	}
}

// FuzzBackupEndpoint: no endpoint panics, the answer is stable, and a host that the resolver would read as an address
// in the subnets is never called outside.
func FuzzBackupEndpoint(f *testing.F) {
	for _, form := range hostForms {
		f.Add(form.endpoint)
	}
	cl := storeCluster("node", "api.example.com")
	services := netip.MustParsePrefix("10.96.0.0/12")
	f.Fuzz(func(t *testing.T, endpoint string) {
		v := Judge(cl, endpoint)
		if v != Judge(cl, endpoint) {
			t.Fatalf("%q: two answers", endpoint)
		}
		switch v.Where {
		case Outside:
			if strings.HasSuffix(v.Host, ".svc") || strings.HasSuffix(v.Host, ".k8s.example.internal") {
				t.Fatalf("%q: host %q called outside", endpoint, v.Host)
			}
			if ip := net.ParseIP(v.Host); ip != nil {
				a, _ := netip.AddrFromSlice(ip)
				if services.Contains(a.Unmap()) {
					t.Fatalf("%q: service address %s called outside", endpoint, a)
				}
			}
		case Inside, Unclear, Invalid:
			if v.Why == "" {
				t.Fatalf("%q: %s without a reason", endpoint, v.Where)
			}
		default:
			t.Fatalf("%q: %q is no answer", endpoint, v.Where)
		}
	})
}
