package real

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// execute runs a program.
func execute(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// reading are kubectl's verbs that change nothing.
var reading = []string{"get", "describe", "logs", "version", "api-resources", "api-versions", "wait", "explain", "top", "cluster-info"}

// namespaced are the kinds that the suite makes and deletes; -n does not bound others.
var namespaced = []string{
	"pod", "deployment", "daemonset", "statefulset", "replicaset", "job", "service", "configmap", "secret",
	"serviceaccount", "persistentvolumeclaim", "poddisruptionbudget", "lease",
}

// Kubectl runs a command of kubectl that only reads. Flags that choose another cluster or user are refused.
func (g *Guard) Kubectl(ctx context.Context, args ...string) (string, error) {
	if len(args) == 0 || !slices.Contains(reading, args[0]) {
		return "", refuse("kubectl %s: only %s; things are made by Apply and deleted by Delete", strings.Join(args, " "), strings.Join(reading, ", "))
	}
	if err := steers(args); err != nil {
		return "", err
	}
	return g.kubectl(ctx, nil, args...)
}

// steers refuses flags that would undo the guard's own.
func steers(args []string) error {
	for _, a := range args {
		flag, _, _ := strings.Cut(a, "=")
		switch flag {
		case "--context", "--kubeconfig", "--cluster", "--server", "--user", "--token", "--as", "--as-group", "--as-uid", "--raw",
			"--client-key", "--client-certificate", "--certificate-authority", "--insecure-skip-tls-verify", "--username", "--password":
			return refuse("kubectl %s: the guard chooses the cluster", flag)
		}
		if strings.HasPrefix(flag, "-s") && !strings.HasPrefix(flag, "--") {
			return refuse("kubectl %s: the guard chooses the cluster", flag)
		}
	}
	return nil
}

func (g *Guard) kubectl(ctx context.Context, stdin []byte, args ...string) (string, error) {
	return g.run(ctx, stdin, "kubectl", append([]string{"--kubeconfig", g.kubeconfig, "--context", g.context}, args...)...)
}

// Apply makes one object in the namespace of the suite; it is deleted at the end.
func (g *Guard) Apply(ctx context.Context, manifest []byte) error {
	var o struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name         string `json:"name"`
			GenerateName string `json:"generateName"`
			Namespace    string `json:"namespace"`
		} `json:"metadata"`
	}
	if err := yaml.Unmarshal(manifest, &o); err != nil {
		return refuse("apply: the manifest can't be read: %v", err)
	}
	kind := strings.ToLower(o.Kind)
	switch {
	case bytes.Contains(manifest, []byte("\n---")):
		return refuse("apply: one object at a time")
	case !slices.Contains(namespaced, kind):
		return refuse("apply: kind %q is none of %s", o.Kind, strings.Join(namespaced, ", "))
	case o.Metadata.Name == "":
		return refuse("apply: %s without a name could not be deleted by name", o.Kind)
	case o.Metadata.Namespace != "" && o.Metadata.Namespace != Namespace:
		return refuse("apply: %s %s is in namespace %s, not in %s", o.Kind, o.Metadata.Name, o.Metadata.Namespace, Namespace)
	}
	// Registered first: an interrupted apply may have made it.
	g.made.add(kind+"/"+o.Metadata.Name, func(ctx context.Context) error { return g.Delete(ctx, kind, o.Metadata.Name) })
	_, err := g.kubectl(ctx, manifest, "apply", "-n", Namespace, "-f", "-")
	return err
}

// Delete deletes one object of the suite's namespace by its name.
func (g *Guard) Delete(ctx context.Context, kind, name string) error {
	kind = strings.ToLower(kind)
	switch {
	case !slices.Contains(namespaced, kind):
		return refuse("delete: kind %q is none of %s", kind, strings.Join(namespaced, ", "))
	case name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, " ,/*"):
		return refuse("delete %s: %q is no name of one object", kind, name)
	}
	_, err := g.kubectl(ctx, nil, "delete", kind, name, "-n", Namespace, "--ignore-not-found")
	if err == nil {
		g.made.drop(kind + "/" + name)
	}
	return err
}

// harmless are talosctl's commands that change nothing on a node.
var harmless = []string{
	"version", "get", "services", "service", "containers", "logs", "dmesg", "events", "list", "ls", "read", "memory",
	"processes", "stats", "mounts", "usage", "health", "time", "netstat", "etcd members", "etcd status", "etcd alarm list", "image list", "inspect dependencies",
}

// Talosctl runs a command of talosctl against named nodes, each at its own address: never through an endpoint or the
// nodes that a talosconfig names.
func (g *Guard) Talosctl(ctx context.Context, nodes []string, args ...string) (string, error) {
	if len(nodes) == 0 {
		return "", refuse("talosctl %s: no node is named", strings.Join(args, " "))
	}
	if g.talosconfig == "" {
		return "", refuse("talosctl: $%s is not set", EnvTalosconfig)
	}
	reads := slices.ContainsFunc(harmless, func(h string) bool { return strings.HasPrefix(strings.Join(args, " ")+" ", h+" ") })
	if len(args) > 1 && args[0] == "service" && len(args) > 2 && args[2] != "status" {
		reads = false // service NAME start|stop|restart
	}
	for i, n := range nodes {
		plain, err := g.Node(n)
		if err != nil {
			return "", err
		}
		if !reads {
			if err := g.MayChange(plain); err != nil {
				return "", fmt.Errorf("talosctl %s: %w", strings.Join(args, " "), err)
			}
		}
		nodes[i] = plain
	}
	for _, a := range args {
		flag, _, _ := strings.Cut(a, "=")
		switch flag {
		case "--nodes", "--endpoints", "--talosconfig", "--context", "--cluster", "--insecure", "-i",
			// health asks the nodes that these name, and Kubernetes at the address of the last.
			"--control-plane-nodes", "--worker-nodes", "--init-node", "--k8s-endpoint":
			return "", refuse("talosctl %s: the guard chooses the node", flag)
		}
		if len(flag) > 1 && (flag[:2] == "-n" || flag[:2] == "-e") {
			return "", refuse("talosctl %s: the guard chooses the node", flag)
		}
	}
	var out strings.Builder
	for _, n := range nodes {
		text, err := g.run(ctx, nil, "talosctl", append([]string{"--talosconfig", g.talosconfig, "--endpoints", n, "--nodes", n}, args...)...)
		out.WriteString(text)
		if err != nil {
			return out.String(), err
		}
	}
	return out.String(), nil
}
