package main

import (
	"bufio"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/crypto/x509"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/ichor/render/bundle"
)

const killedRepo = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: prod}
spec:
  talosVersion: v1.13.5
  contract: v1.13
  kubernetesVersion: v1.36.1
  endpoint: {type: loadBalancer, address: 127.0.177.11}
  controlPlane: {count: 3}
  secretsRef: {path: secrets.sops.yaml}
  install: {disk: /dev/sda}
`

const killedMachine = `---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: cp%[1]d}
spec: {clusterRef: {name: prod}, role: controlplane, approvalState: approved, endpoint: 127.0.177.1%[1]d, hostname: cp%[1]d}
`

// TestKilledWhileWriting: kill -9 of ichor-lab, at rest and under writes, three times: etcd has every
// write that it acknowledged, and nobody had to do anything but start the lab again.
func TestKilledWhileWriting(t *testing.T) {
	dir := t.TempDir()
	repo, state := filepath.Join(dir, "repo"), filepath.Join(dir, "state")
	text := killedRepo
	for i := 1; i <= 3; i++ {
		text += fmt.Sprintf(killedMachine, i)
	}
	check(t, os.MkdirAll(repo, 0o755))
	check(t, os.WriteFile(filepath.Join(repo, "all.yaml"), []byte(text), 0o600))
	for _, name := range []string{"SOPS_AGE_KEY", "SOPS_AGE_KEY_FILE"} {
		t.Setenv(name, "")
	}

	lab := startLab(t, repo, state)
	cl := etcdOf(t, repo, state)
	acked := 0
	write := func(n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		for range n {
			for {
				one, stop := context.WithTimeout(ctx, 2*time.Second)
				_, err := cl.Put(one, fmt.Sprintf("w/%06d", acked), "x")
				stop()
				if err == nil {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("etcd takes no writes: %v", err)
				}
			}
			acked++
		}
	}
	write(20)
	for round := range 3 {
		done := make(chan struct{})
		stop := make(chan struct{})
		go func() { // writes all the time; those that were acknowledged are counted
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				_, err := cl.Put(ctx, fmt.Sprintf("w/%06d", acked), "x")
				cancel()
				if err == nil {
					acked++
				}
			}
		}()
		time.Sleep(time.Duration(100+100*round) * time.Millisecond)
		check(t, lab.Process.Kill())
		if err := lab.Wait(); err == nil {
			t.Fatal("the lab ended by itself")
		}
		close(stop)
		<-done
		lab = startLab(t, repo, state)
		write(5)
		got, err := cl.Get(t.Context(), "w/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		check(t, err)
		have := map[string]bool{}
		for _, kv := range got.Kvs {
			have[string(kv.Key)] = true
		}
		for i := range acked {
			if key := fmt.Sprintf("w/%06d", i); !have[key] {
				t.Errorf("round %d: write %s was acknowledged and is gone", round, key)
			}
		}
		members, err := cl.MemberList(t.Context())
		check(t, err)
		if len(members.Members) != 3 {
			t.Errorf("round %d: %d members", round, len(members.Members))
		}
	}
	t.Logf("%d writes", acked)
	if acked < 50 {
		t.Errorf("only %d writes were made", acked)
	}
	check(t, lab.Process.Signal(os.Interrupt))
	check(t, lab.Wait())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// startLab starts the real command and waits until it says that it is ready.
func startLab(t *testing.T, repo, state string) *exec.Cmd {
	t.Helper()
	exe, err := exec.LookPath("ichor-lab") // testscript puts it on the PATH
	if err != nil {
		exe = filepath.Join(t.TempDir(), "ichor-lab")
		self, err := os.Executable()
		check(t, err)
		check(t, os.Symlink(self, exe)) // by that name the test binary is the command
	}
	cmd := exec.CommandContext(t.Context(), exe, "up", "--repo", repo, "--state", state, "--configured", "--make-secrets", "--s3", "off")
	out, err := cmd.StdoutPipe()
	check(t, err)
	var said strings.Builder
	cmd.Stderr = &said
	check(t, cmd.Start())
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var e struct{ Event string }
			if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event == "lab.ready" {
				ready <- true
			}
		}
		io.Copy(io.Discard, out) //nolint:errcheck // until it ends
		close(ready)
	}()
	select {
	case ok := <-ready:
		if !ok {
			t.Fatalf("the lab ended: %s", said.String())
		}
	case <-time.After(90 * time.Second):
		t.Fatal("the lab is not ready")
	}
	return cmd
}

// etcdOf makes a client of the cluster's etcd with the keys of its secrets bundle.
func etcdOf(t *testing.T, repo, state string) *clientv3.Client {
	t.Helper()
	keys, err := os.ReadFile(filepath.Join(state, "age.key"))
	check(t, err)
	ring, err := bundle.ParseKeys(keys)
	check(t, err)
	sealed, err := os.ReadFile(filepath.Join(repo, "secrets.sops.yaml"))
	check(t, err)
	b, err := bundle.Open(sealed, "secrets.sops.yaml", ring)
	check(t, err)
	ca := b.Secrets().Certs.Etcd
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	check(t, err)
	pair, err := x509.NewKeyPair(authority, x509.CommonName("test"), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	check(t, err)
	roots := stdx509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Crt)
	cl, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"https://127.0.177.11:2379", "https://127.0.177.12:2379", "https://127.0.177.13:2379"},
		DialTimeout: 2 * time.Second, Logger: zap.NewNop(), Context: t.Context(),
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*pair.Certificate}, RootCAs: roots},
	})
	check(t, err)
	t.Cleanup(func() { cl.Close() })
	return cl
}
