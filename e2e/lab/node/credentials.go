package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	stdx509 "crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// clockSkew is how far back a kubeconfig's certificate is valid, for servers whose clock is late.
const clockSkew = 10 * time.Second

// kubeconfigFile is the file's text with the placeholders authorities, server, cluster name,
// certificate, key and user, in the layout that client-go writes.
const kubeconfigFile = `apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: %[1]s
    server: %[2]s
  name: %[3]s
contexts:
- context:
    cluster: %[3]s
    namespace: default
    user: %[6]s@%[3]s
  name: %[6]s@%[3]s
current-context: %[6]s@%[3]s
kind: Config
users:
- name: %[6]s@%[3]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
`

// Kubeconfig implements machine.MachineService: an admin's kubeconfig, its certificate fresh from
// the cluster's Kubernetes CA, as the file "kubeconfig" in a tar.gz.
func (a *api) Kubeconfig(_ *emptypb.Empty, srv machine.MachineService_KubeconfigServer) error {
	if err := a.checkControlPlane("kubeconfig"); err != nil {
		return err
	}
	file, err := adminKubeconfig(a.boot.config(), a.boot.node.now())
	if err != nil {
		return err
	}
	packed, err := packKubeconfig(file)
	if err != nil {
		return err
	}
	return srv.Send(&common.Data{Bytes: packed})
}

// adminKubeconfig makes the file from the machine configuration of a control plane.
func adminKubeconfig(cfg config.Config, now time.Time) ([]byte, error) {
	admin := cfg.Cluster().AdminKubeconfig()
	return kubeconfigFor(cfg, now, "admin", admin.CommonName(), admin.CertOrganization(), admin.CertLifetime())
}

// kubeconfigFor makes a kubeconfig with a client certificate for a name and an organization.
func kubeconfigFor(cfg config.Config, now time.Time, user, cn, org string, ttl time.Duration) ([]byte, error) {
	cl := cfg.Cluster()
	issuer := cl.IssuingCA()
	if issuer == nil {
		return nil, status.Error(codes.FailedPrecondition, "k8s API server CA config is not set")
	}
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(issuer)
	if err != nil {
		return nil, fmt.Errorf("error getting Kubernetes CA: %w", err)
	}
	pair, err := x509.NewKeyPair(ca,
		x509.CommonName(cn), x509.Organization(org),
		x509.NotBefore(now.Add(-clockSkew)), x509.NotAfter(now.Add(ttl)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}),
	)
	if err != nil {
		return nil, fmt.Errorf("error generating Kubernetes client certificate: %w", err)
	}
	cert := x509.NewCertificateAndKeyFromKeyPair(pair)
	var trusted []byte
	for _, c := range cl.AcceptedCAs() {
		trusted = append(trusted, c.Crt...)
	}
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, kubeconfigFile, b64(append(trusted, issuer.Crt...)), cl.Endpoint(), cl.Name(), b64(cert.Crt), b64(cert.Key), user), nil
}

// packKubeconfig wraps the file as Copy's answers are. Talos closes the gzip stream without the
// end of the tar archive; so does this.
func packKubeconfig(file []byte) ([]byte, error) {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	if err := tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: "kubeconfig", Size: int64(len(file)), ModTime: time.Now(), Mode: 0o600,
	}); err != nil {
		return nil, err
	}
	if _, err := tw.Write(file); err != nil {
		return nil, err
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// GenerateClientConfiguration implements machine.MachineService: `talosctl config new`. A role that
// Talos does not know is passed on as it is.
func (a *api) GenerateClientConfiguration(_ context.Context, in *machine.GenerateClientConfigurationRequest) (*machine.GenerateClientConfigurationResponse, error) {
	if err := a.checkControlPlane("generate client configuration"); err != nil {
		return nil, err
	}
	ttl := in.CrtTtl.AsDuration()
	if ttl <= 0 {
		return nil, status.Error(codes.InvalidArgument, "crt_ttl should be positive")
	}
	roles, _ := role.Parse(in.Roles)
	bundle, err := secrets.NewBundleFromConfig(secrets.NewFixedClock(a.boot.node.now()), a.boot.config())
	if err != nil {
		return nil, err
	}
	cert, err := bundle.GenerateTalosAPIClientCertificateWithTTL(roles, ttl)
	if err != nil {
		return nil, err
	}
	name := a.boot.config().Cluster().Name()
	if r := roles.Strings(); len(r) == 1 {
		name = strings.TrimPrefix(r[0], role.Prefix) + "@" + name
	}
	file, err := clientconfig.NewConfig(name, nil, bundle.Certs.OS.Crt, cert).Bytes()
	if err != nil {
		return nil, err
	}
	return &machine.GenerateClientConfigurationResponse{Messages: []*machine.GenerateClientConfiguration{{
		Ca: bundle.Certs.OS.Crt, Crt: cert.Crt, Key: cert.Key, Talosconfig: file,
	}}}, nil
}
