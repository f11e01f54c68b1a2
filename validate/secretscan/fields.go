package secretscan

import (
	"bytes"
	"regexp"
	"strings"
)

// secretField is a field that holds a secret. Path is matched from its end against the lower-case keys that lead to a
// value (list indexes left out; "*" is any one key; "kind:x" is a document of that kind).
type secretField struct {
	path string
	what string
	// shape must hold where the document is not known to be Talos configuration: the names are common.
	shape *regexp.Regexp
}

// keyShape is a key itself, and not the path of one.
var keyShape = regexp.MustCompile(`^(LS0t|-----BEGIN)`)

// secretFields lists the secret fields of Talos bundles and configurations (what the library's Redact covers, and more),
// talosconfig, kubeconfig and the credentials of an S3 store.
var secretFields = []secretField{
	// A secrets bundle.
	{"cluster.secret", "the cluster secret", base64Of32},
	{"secrets.bootstraptoken", "the bootstrap token", nil},
	{"secrets.aescbcencryptionsecret", "the AES encryption key", nil},
	{"secrets.secretboxencryptionsecret", "the secretbox encryption key", nil},
	{"trustdinfo.token", "the machine token", nil},
	{"certs.etcd.key", "the etcd CA key", keyShape},
	{"certs.k8s.key", "the Kubernetes CA key", keyShape},
	{"certs.k8saggregator.key", "the aggregator CA key", keyShape},
	{"certs.k8sserviceaccount.key", "the service account key", keyShape},
	{"certs.os.key", "the Talos CA key", keyShape},
	// A machine configuration or a patch of one.
	{"machine.token", "the machine token", tokenShape},
	{"machine.ca.key", "the Talos CA key", keyShape},
	{"cluster.token", "the bootstrap token", tokenShape},
	{"cluster.ca.key", "the Kubernetes CA key", keyShape},
	{"cluster.aggregatorca.key", "the aggregator CA key", keyShape},
	{"cluster.serviceaccount.key", "the service account key", keyShape},
	{"etcd.ca.key", "the etcd CA key", keyShape},
	{"cluster.aescbcencryptionsecret", "the AES encryption key", nil},
	{"cluster.secretboxencryptionsecret", "the secretbox encryption key", nil},
	{"registries.config.*.auth.password", "a registry password", nil},
	{"registries.config.*.auth.auth", "a registry password", nil},
	{"registries.config.*.auth.identitytoken", "a registry token", nil},
	{"clientidentity.key", "a client key", keyShape},
	{"wireguard.privatekey", "a WireGuard private key", nil},
	{"wireguard.peers.presharedkey", "a WireGuard preshared key", nil},
	{"hcloud.apitoken", "an API token", nil},
	{"equinixmetal.apitoken", "an API token", nil},
	{"keys.static.passphrase", "a disk encryption passphrase", nil},
	{"kind:registryauthconfig.password", "a registry password", nil},
	{"kind:registryauthconfig.auth", "a registry password", nil},
	{"kind:registryauthconfig.identitytoken", "a registry token", nil},
	{"kind:wireguardconfig.privatekey", "a WireGuard private key", nil},
	{"kind:wireguardconfig.peers.presharedkey", "a WireGuard preshared key", nil},
	{"kind:hcloudvipconfig.apitoken", "an API token", nil},
	{"kind:siderolinkconfig.uniquetoken", "a SideroLink token", nil},
	{"secretbox.keys.secret", "an encryption key of etcd", nil},
	{"aescbc.keys.secret", "an encryption key of etcd", nil},
	{"aesgcm.keys.secret", "an encryption key of etcd", nil},
	{"privatekey", "a private key", base64Of32},
	// talosconfig and kubeconfig.
	{"contexts.*.key", "the key of a talosconfig", keyShape},
	{"users.user.client-key-data", "the key of a kubeconfig", nil},
	{"users.user.token", "the token of a kubeconfig", nil},
	{"users.user.password", "the password of a kubeconfig", nil},
	{"users.user.auth-provider.config.access-token", "the token of a kubeconfig", nil},
	{"users.user.auth-provider.config.id-token", "the token of a kubeconfig", nil},
	{"users.user.auth-provider.config.refresh-token", "the token of a kubeconfig", nil},
	// The credentials of an S3 store.
	{"secretaccesskey", "an S3 secret access key", s3Shape},
	{"aws_secret_access_key", "an S3 secret access key", s3Shape},
}

// fieldIndex holds secretFields by their last key, each path split and turned round.
var fieldIndex = func() map[string][]indexedField {
	index := map[string][]indexedField{}
	for _, f := range secretFields {
		keys := strings.Split(f.path, ".")
		last := keys[len(keys)-1]
		index[last] = append(index[last], indexedField{field: f, keys: keys})
	}
	return index
}()

type indexedField struct {
	field secretField
	keys  []string
}

// secretFieldAt finds the secret field that a path of lower-case keys ends in.
func secretFieldAt(keys []string, value string, talos bool) (secretField, bool) {
	if len(keys) == 0 {
		return secretField{}, false
	}
	for _, f := range fieldIndex[keys[len(keys)-1]] {
		if !endsIn(keys, f.keys) {
			continue
		}
		if f.field.shape != nil && !talos && !f.field.shape.MatchString(strings.TrimSpace(value)) {
			continue
		}
		return f.field, true
	}
	return secretField{}, false
}

func endsIn(keys, pattern []string) bool {
	if len(keys) < len(pattern) {
		return false
	}
	keys = keys[len(keys)-len(pattern):]
	for i, p := range pattern {
		if p != "*" && p != keys[i] {
			return false
		}
	}
	return true
}

// mayHoldFields is a quick look whether a file names any field that matters: most files don't, and are not parsed.
func mayHoldFields(data []byte) bool {
	if bytes.Contains(data, []byte("/machine/")) || bytes.Contains(data, []byte("/cluster/")) ||
		bytes.Contains(data, []byte("jointoken")) || bytes.Contains(data, []byte("Secret")) {
		return true
	}
	var key [64]byte
	for at := 0; at < len(data); at++ {
		i := bytes.IndexAny(data[at:], ":=")
		if i < 0 {
			return false
		}
		at += i
		if k := keyBefore(data[:at], key[:0]); len(k) > 0 && fieldIndex[string(k)] != nil {
			return true
		}
	}
	return false
}

// keyBefore gives the word that ends before a colon, in lower case.
func keyBefore(data, buf []byte) []byte {
	end := len(data)
	for end > 0 && (data[end-1] == '"' || data[end-1] == '\'' || data[end-1] == ' ') {
		end--
	}
	start := end
	for start > 0 && end-start < cap(buf) && isKeyByte(data[start-1]) {
		start--
	}
	for _, b := range data[start:end] {
		if b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		buf = append(buf, b)
	}
	return buf
}

func isKeyByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_'
}
