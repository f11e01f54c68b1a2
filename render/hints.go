package render

import (
	"errors"
	"strings"

	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// errJSONPatch is Talos's text for a JSON patch on more than one document.
const errJSONPatch = "JSON6902 patches are not supported"

// hint says what to do about errors that people often meet.
func (j *job) hint(e *Error, m *fleet.Machine, id identity, entries []*entry, guilty int) string {
	text := e.Talos
	switch {
	case strings.Contains(text, errEmptyEntry.Error()):
		return "write the fields that it is to change, or take it out"
	case strings.Contains(text, errJSONPatch):
		return j.jsonHint(m, id, entries, guilty)
	case strings.Contains(text, "static hostname is already set"), strings.Contains(text, "stable hostname is already set"):
		return "set spec.hostname of the TalosMachine instead; without it the node names itself"
	case strings.Contains(text, "etcd encryption config is required"), strings.Contains(text, "secret of an encryption key is empty"):
		if s := j.in.Bundle.Secrets().Secrets; s != nil && s.SecretboxEncryptionSecret == "" {
			return "the secrets bundle has no secrets.secretboxencryptionsecret, which this contract renders; " +
				"a cluster that still uses secrets.aescbcencryptionsecret sets it in a patch, encrypted"
		}
	case strings.Contains(text, "either install disk or diskSelector"):
		return "set spec.install.disk or spec.install.diskSelector of the TalosCluster or TalosMachine"
	case strings.Contains(text, "unknown keys found"):
		return "Talos does not know this key: check its spelling and its place"
	case strings.Contains(text, "not registered"):
		return "Talos does not know this kind of document: check its kind and apiVersion; it may be newer than this Ichor"
	case strings.Contains(text, "missing kind"):
		return "begin with machine: or cluster:, or give apiVersion and kind of a document"
	case strings.Contains(text, "cannot construct"):
		return "the value is of another type than Talos wants here; quote a text, and don't quote numbers or true and false"
	}
	for _, r := range replacedBy {
		if strings.Contains(text, r.text) {
			return j.replacedHint(r)
		}
	}
	switch {
	case e.Patch != nil:
		return "correct the entry that is named, or take it out; the text is Talos's own and names the field"
	case strings.Contains(text, "the secrets bundle"):
		return ""
	}
	return "correct spec.install and the other fields of the TalosMachine or the TalosCluster; the text is Talos's own and names the field"
}

// replacedHint says which document replaces a field of the v1alpha1 document. The new one is there because the contract
// renders it, or because another patch brought it.
func (j *job) replacedHint(r replacement) string {
	until, err := talosconfig.ParseContractFromVersion("v" + r.until)
	if err == nil && j.contract.Greater(until) && !r.optional {
		return "contract " + j.contract.String() + " sets this in a document of kind " + r.kind +
			": patch that one instead, or stay on contract v" + r.until
	}
	return "a document of kind " + r.kind + ", which another patch brings, replaces this field: set it there, and take it out here"
}

// replacement is a document that replaces a part of the v1alpha1 document.
type replacement struct {
	// text of Talos where both are there, kind of the document, until: the last contract that renders the old form.
	text, kind, until string
	// optional: no contract renders the document by itself, so that a patch brought it.
	optional bool
}

// replacedBy lists the documents that replace a part of the v1alpha1 document, by Talos's conflict text (each
// document's V1Alpha1ConflictValidate in the machinery library), with the last contract that renders the old form.
var replacedBy = []replacement{
	{text: "kube-apiserver config is already set", kind: "KubeAPIServerConfig", until: "1.13"},
	{text: "kube-controller-manager config is already set", kind: "KubeControllerManagerConfig", until: "1.13"},
	{text: "kube-scheduler config is already set", kind: "KubeSchedulerConfig", until: "1.13"},
	{text: "kube-proxy config is already set", kind: "KubeProxyConfig", until: "1.13"},
	{text: "kube-apiserver API port is already set", kind: "KubeAPIServerConfig", until: "1.13"},
	{text: "etcd encryption config is already set", kind: "KubeEtcdEncryptionConfig", until: "1.13"},
	{text: "admission control plugin config is already set", kind: "KubeAdmissionControlConfig or KubeAuthorizerConfig", until: "1.13"},
	{text: "audit policy config is already set", kind: "KubeAuditPolicyConfig", until: "1.13"},
	{text: "discovery service is already configured", kind: "DiscoveryServiceConfig", until: "1.13"},
	{text: ".machine.features.hostDNS is already set", kind: "ResolverConfig", until: "1.13"},
	{text: ".machine.network.nameservers is already set", kind: "ResolverConfig", until: "1.13", optional: true},
	{text: ".machine.network.searchDomains is already set", kind: "ResolverConfig", until: "1.13", optional: true},
	{text: ".machine.network.disableSearchDomain is already set", kind: "ResolverConfig", until: "1.13", optional: true},
	{text: "image cache config is already set", kind: "ImageCacheConfig", until: "1.13", optional: true},
	{text: "kubespan is already configured", kind: "KubeSpanConfig", until: "1.12", optional: true},
	{text: "time servers cannot be specified in both", kind: "TimeSyncConfig", until: "1.13", optional: true},
	{text: "boot timeout cannot be specified in both", kind: "TimeSyncConfig", until: "1.13", optional: true},
	// From Talos 1.14.0-rc.1 on, which this library does not know yet; a node says it (talos-observed-114 section 2).
	{text: "UnattendedInstallConfig config is incompatible", kind: "UnattendedInstallConfig", until: "1.13"},
	{text: "kubelet config is already set", kind: "KubeletConfig", until: "1.13"},
	{text: ".machine.nodeLabels is already set", kind: "KubeNodeConfig", until: "1.13"},
	{text: "cluster name is already set", kind: "KubeClusterConfig", until: "1.13"},
	{text: "cluster identity is already configured", kind: "DiscoveryIdentityConfig", until: "1.13"},
}

var errNoHint = errors.New("no sparse document says the same")
