package real

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const kubeconfigText = `apiVersion: v1
kind: Config
current-context: production
contexts:
- {name: production, context: {cluster: p, user: p}}
- {name: test, context: {cluster: t, user: t}}
`

// childEnv makes the test binary a suite that makes one object and waits for a signal.
const childEnv = "ICHOR_E2E_GUARD_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	g, err := FromEnv(os.Getenv)
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	os.Exit(g.supervise(os.Stderr, func(ctx context.Context, g *Guard) int {
		if err := g.Apply(ctx, pod("left-behind")); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("made")
		select {} // hangs: only a signal ends it
	}))
}

func pod(name string) []byte {
	return []byte("apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\n")
}

// vars is an environment that is let through.
func vars(t *testing.T) map[string]string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfigText), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{EnvKubeconfig: path, EnvContext: "test", EnvNodes: "192.0.2.1, 192.0.2.2", EnvTalosconfig: "talosconfig"}
}

func TestStart(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{EnvKubeconfig, "", "$KUBECONFIG is not set"},
		{EnvContext, "", "$ICHOR_E2E_KUBE_CONTEXT is not set"},
		{EnvNodes, " ", "$ICHOR_E2E_NODES is not set"},
		{EnvKubeconfig, "/nonexistent", "no such file"},
		{EnvContext, "prod", `context "prod" is not in`},
		{EnvNodes, "192.0.2.1 cp1.example.com", "is no IP address"},
		{EnvNodes, "192.0.2.1:50000", "is no IP address"},
		{EnvNodes, "0.0.0.0", "no address of one node"},
		{EnvNodes, "192.0.2.1 192.0.2.1", "named twice"},
		{EnvDeny, "192.0.2.2", "which $ICHOR_E2E_DENY denies"},
		{EnvDeny, "192.0.2.0/24", "which $ICHOR_E2E_DENY denies"},
		{EnvDeny, "the router", "neither an address nor a network"},
		{EnvDeny, "::ffff:192.0.2.0/120", "write it as IPv4"},
		{EnvDeny, "fe80::1%eth0", "neither an address nor a network"},
		{EnvNodes, "fe80::1%eth0", "has a zone"},
		{EnvDestructive, "192.0.2.9", "which $ICHOR_E2E_NODES does not"},
	} {
		env := vars(t)
		env[c.name] = c.value
		g, err := FromEnv(func(k string) string { return env[k] })
		if g != nil || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%q: want a refusal with %q, got %v", c.name, c.value, c.want, err)
		}
	}
	env := vars(t)
	if g, err := FromEnv(func(k string) string { return env[k] }); err != nil || len(g.Nodes()) != 2 {
		t.Fatalf("it does not start: %v", err)
	}
	if _, err := FromEnv(func(string) string { return "" }); strings.Count(err.Error(), "is not set") != 3 {
		t.Errorf("not all that is missing is said: %v", err)
	}
}

// calls are what came through to the programs.
type calls []string

func guard(t *testing.T, env map[string]string) (*Guard, *calls) {
	t.Helper()
	g, err := FromEnv(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	c := &calls{}
	g.run = func(_ context.Context, stdin []byte, name string, args ...string) (string, error) {
		*c = append(*c, name+" "+strings.Join(args, " "))
		return "", nil
	}
	return g, c
}

func TestKubectl(t *testing.T) {
	env := vars(t)
	g, made := guard(t, env)
	ctx := t.Context()
	for _, args := range [][]string{
		nil,
		{"delete", "pod", "x"},
		{"delete", "-n", "ichor-e2e", "pod", "--all"},
		{"apply", "-f", "x"},
		{"exec", "x", "--", "sh"},
		{"drain", "node1"},
		{"config", "use-context", "production"},
		{"get", "pods", "--context", "production"},
		{"get", "pods", "--context=production"},
		{"get", "pods", "--kubeconfig=/other"},
		{"get", "pods", "--server=https://other"},
		{"get", "pods", "-shttps://other"},
		{"get", "pods", "--token=x"},
		{"get", "--raw", "/"},
	} {
		if _, err := g.Kubectl(ctx, args...); !errors.Is(err, ErrRefused) {
			t.Errorf("kubectl %v: %v", args, err)
		}
	}
	for _, c := range [][2]string{
		{"node", "n1"},
		{"namespace", "ichor-e2e"},
		{"pod", ""},
		{"pod", "--all"},
		{"pod", "-l"},
		{"pod", "a b"},
		{"pod", "a,b"},
		{"pod,node", "a"},
	} {
		if err := g.Delete(ctx, c[0], c[1]); !errors.Is(err, ErrRefused) {
			t.Errorf("delete %v: %v", c, err)
		}
	}
	for _, m := range []string{
		"kind: Namespace\nmetadata: {name: x}",
		"kind: ClusterRole\nmetadata: {name: x}",
		"kind: Pod\nmetadata: {name: x, namespace: default}",
		"kind: Pod\nmetadata: {generateName: x}",
		"kind: Pod\nmetadata: {name: x}\n---\nkind: Node\nmetadata: {name: y}",
		"{",
	} {
		if err := g.Apply(ctx, []byte(m)); !errors.Is(err, ErrRefused) {
			t.Errorf("apply %q: %v", m, err)
		}
	}
	if len(*made) != 0 {
		t.Fatalf("refused, but called: %v", *made)
	}

	if _, err := g.Kubectl(ctx, "get", "nodes"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := g.Apply(ctx, pod(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Delete(ctx, "Pod", "a"); err != nil {
		t.Fatal(err)
	}
	if err := g.CleanUp(ctx); err != nil {
		t.Fatal(err)
	}
	with := "kubectl --kubeconfig " + env[EnvKubeconfig] + " --context test "
	want := []string{
		with + "get nodes", with + "apply -n ichor-e2e -f -", with + "apply -n ichor-e2e -f -",
		with + "delete pod a -n ichor-e2e --ignore-not-found", with + "delete pod b -n ichor-e2e --ignore-not-found",
	}
	if !slices.Equal(*made, want) {
		t.Errorf("called\n%s\nwant\n%s", strings.Join(*made, "\n"), strings.Join(want, "\n"))
	}
}

func TestTalosctl(t *testing.T) {
	env := vars(t)
	env[EnvNodes], env[EnvDeny], env[EnvDestructive] = "192.0.2.1 192.0.2.2", "192.0.2.100 10.0.0.0/8", "192.0.2.2"
	g, made := guard(t, env)
	for _, c := range []struct {
		nodes []string
		args  string
		want  string
	}{
		{nil, "version", "no node is named"},
		{[]string{""}, "version", "no node is named"},
		{[]string{"192.0.2.3"}, "version", "not among"},
		{[]string{"192.0.2.1", "192.0.2.100"}, "version", "is denied"},
		{[]string{"10.1.2.3"}, "version", "is denied (10.0.0.0/8)"},
		{[]string{"::ffff:10.1.2.3"}, "version", "is denied"},
		{[]string{"cp1"}, "version", "no IP address"},
		{[]string{"192.0.2.1"}, "reboot", "may not be changed"},
		{[]string{"192.0.2.1"}, "etcd remove-member x", "may not be changed"},
		{[]string{"192.0.2.1"}, "service kubelet restart", "may not be changed"},
		{[]string{"192.0.2.1"}, "versions", "may not be changed"},
		{[]string{"192.0.2.2", "192.0.2.1"}, "reset", "may not be changed"},
		{[]string{"192.0.2.1"}, "version -n 10.0.0.1", "the guard chooses"},
		{[]string{"192.0.2.1"}, "version -n10.0.0.1", "the guard chooses"},
		{[]string{"192.0.2.1"}, "version --nodes=10.0.0.1", "the guard chooses"},
		{[]string{"192.0.2.1"}, "version -e 10.0.0.1", "the guard chooses"},
		{[]string{"192.0.2.1"}, "version --context other", "the guard chooses"},
		{[]string{"192.0.2.1"}, "health --server=false --control-plane-nodes 192.0.2.9", "the guard chooses"},
	} {
		if _, err := g.Talosctl(t.Context(), c.nodes, strings.Fields(c.args)...); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %s: want a refusal with %q, got %v", c.nodes, c.args, c.want, err)
		}
	}
	if len(*made) != 0 {
		t.Fatalf("refused, but called: %v", *made)
	}
	for _, c := range [][]string{{"192.0.2.1", "etcd", "members"}, {"192.0.2.2", "reboot"}} {
		if _, err := g.Talosctl(t.Context(), c[:1], c[1:]...); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"talosctl --talosconfig talosconfig --endpoints 192.0.2.1 --nodes 192.0.2.1 etcd members",
		"talosctl --talosconfig talosconfig --endpoints 192.0.2.2 --nodes 192.0.2.2 reboot",
	}
	if !slices.Equal(*made, want) {
		t.Errorf("called %v", *made)
	}
}

// TestInterrupted: a built binary that is interrupted deletes what it made, by name, and says so in its exit code.
func TestInterrupted(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		dir, env := t.TempDir(), vars(t)
		log := filepath.Join(dir, "log")
		script := "#!/bin/sh\necho \"$@\" >>" + log + "\n"
		if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=yes", "PATH="+dir+":"+os.Getenv("PATH"))
		for k, v := range env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "made\n" {
			t.Fatalf("the suite said %q, %v", line, err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Errorf("%s: exit code %d, want 130", sig, code)
		}
		called, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(called), "--context test delete pod left-behind -n ichor-e2e --ignore-not-found\n") {
			t.Errorf("%s: it called\n%s", sig, called)
		}
	}
}

// TestNotBuilt: under "go test" the suite does not even start.
func TestNotBuilt(t *testing.T) {
	if self, _ := os.Executable(); !strings.Contains(self, "/go-build") {
		t.Skip("this test binary was built by itself")
	}
	code := Main(io.Discard, func(context.Context, *Guard) int {
		t.Error("the suite ran")
		return 0
	})
	if code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
}

// TestLeftBehind: what can't be undone is named, and the rest is undone all the same.
func TestLeftBehind(t *testing.T) {
	g, _ := guard(t, vars(t))
	var order []string
	for _, name := range []string{"first", "second", "third"} {
		g.AtEnd(name, func(context.Context) error {
			order = append(order, name)
			if name == "second" {
				return errors.New("it is stuck")
			}
			return nil
		})
	}
	err := g.CleanUp(t.Context())
	if err == nil || !strings.Contains(err.Error(), "clean up second: it is stuck") || !slices.Equal(order, []string{"third", "second", "first"}) {
		t.Errorf("%v, %v", order, err)
	}
}
