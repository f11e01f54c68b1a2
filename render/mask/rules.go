package mask

import (
	"encoding/base64"
	"strings"
)

// fromBundle are the fields of the v1alpha1 document that the secrets bundle fills (generate.Input of the machinery
// library), IDs and certificates too: the library's own redaction leaves those.
var fromBundle = map[string]bool{
	"machine.token": true, "machine.ca.crt": true, "machine.ca.key": true,
	"cluster.id": true, "cluster.secret": true, "cluster.token": true,
	"cluster.ca.crt": true, "cluster.ca.key": true,
	"cluster.aggregatorCA.crt": true, "cluster.aggregatorCA.key": true,
	"cluster.serviceAccount.key": true, "cluster.etcd.ca.crt": true, "cluster.etcd.ca.key": true,
	"cluster.secretboxEncryptionSecret": true, "cluster.aescbcEncryptionSecret": true,
}

// bundleKinds are the documents whose every value but apiVersion, kind and name is masked: Talos 1.14 moves the
// bundle's parts into them, and the library (1.14.0-alpha.2) does not know their fields yet
// (talos-observed-114, section 3: talosctl gen config of 1.14.0-rc.1).
var bundleKinds = map[string]bool{
	"DiscoveryIdentityConfig": true, "KubeAPIServerCAConfig": true, "KubeAggregatorCAConfig": true,
	"KubeServiceAccountConfig": true,
}

// secretNames are field names that hold a secret in every document kind (RedactSecrets of the library, and what
// Talos's documents call such fields), in lower case.
var secretNames = map[string]bool{
	"token": true, "secret": true, "password": true, "auth": true, "identitytoken": true,
	"privatekey": true, "presharedkey": true, "apitoken": true, "uniquetoken": true, "jointoken": true,
	"passphrase": true, "keydata": true, "secretkey": true, "secretaccesskey": true, "bootstraptoken": true,
	"secretboxencryptionsecret": true, "aescbcencryptionsecret": true, "clientsecret": true,
}

// freeMaps hold keys that people choose, so that a name in them says nothing.
var freeMaps = map[string]bool{
	"nodeLabels": true, "nodeAnnotations": true, "nodeTaints": true, "labels": true, "annotations": true,
	"taints": true, "sysctls": true, "sysfs": true, "extraArgs": true, "params": true,
}

// freeText are fields, and everything below them, whose content no schema describes.
var freeText = map[string]bool{
	"content": true, "contents": true, "env": true, "environment": true, "extraManifestHeaders": true,
	"pods": true, "configFiles": true, "userData": true,
}

// maskValue copies v with what is secret replaced. path are the keys on the way, list indices left out. strict
// also masks free text. Empty strings and nulls are no secrets and stay, so that both sides have the same form.
func maskValue(kind string, path []string, v any, strict bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			p := append(path[:len(path):len(path)], k)
			if isScalar(x) && x != nil && x != "" && secretField(kind, p, v, x, strict) {
				out[k] = Marker
				continue
			}
			out[k] = maskValue(kind, p, x, strict)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			if isScalar(x) && x != nil && x != "" && secretField(kind, path, nil, x, strict) {
				out[i] = Marker
				continue
			}
			out[i] = maskValue(kind, path, x, strict)
		}
		return out
	}
	return v
}

func isScalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

// secretField tells whether the scalar v at path is to be masked; siblings is the mapping that it lies in, nil for
// a list element.
func secretField(kind string, path []string, siblings map[string]any, v any, strict bool) bool {
	if kind == V1Alpha1 && fromBundle[strings.Join(path, ".")] {
		return true
	}
	if bundleKinds[kind] && !(len(path) == 1 && (path[0] == "apiVersion" || path[0] == "kind" || path[0] == "name")) {
		return true
	}
	if s, ok := v.(string); ok && secretContent(s) {
		return true
	}
	if strict {
		for _, k := range path {
			if freeText[k] {
				return true
			}
		}
	}
	for _, k := range path[:len(path)-1] {
		if freeMaps[k] {
			return false
		}
	}
	name := path[len(path)-1]
	if name == "key" {
		return hasCertificate(siblings) || len(path) > 1 && path[len(path)-2] == "serviceAccount"
	}
	return secretNames[strings.ToLower(name)]
}

// hasCertificate tells a pair of certificate and key from other fields that are called key.
func hasCertificate(m map[string]any) bool {
	_, crt := m["crt"]
	_, cert := m["cert"]
	return crt || cert
}

// secretContent recognises secrets by their form wherever they lie.
func secretContent(s string) bool {
	if strings.Contains(s, "PRIVATE KEY-----") || strings.Contains(s, "AGE-SECRET-KEY-") ||
		strings.Contains(s, "jointoken=") {
		return true
	}
	if strings.HasPrefix(s, "LS0tLS1CRUdJTi") {
		b, err := base64.StdEncoding.DecodeString(s)
		return err != nil || strings.Contains(string(b), "PRIVATE KEY-----")
	}
	// A URL with a password in it: scheme://user:password@host.
	if i := strings.Index(s, "://"); i > 0 {
		rest := s[i+3:]
		if end := strings.IndexAny(rest, "/?# \n"); end >= 0 {
			rest = rest[:end]
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 && strings.Contains(rest[:at], ":") {
			return true
		}
	}
	return false
}
