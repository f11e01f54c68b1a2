package lab_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// childEnv makes the test binary a lab of its own on the folder that it names, for the test that kills it.
const childEnv = "ICHOR_LAB_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	os.Exit(m.Run())
}

// child resumes the lab in a folder, says when its control plane is ready, and runs until it is killed.
func child(dir string) {
	ctx := context.Background()
	l, err := lab.New(ctx, lab.Options{StateDir: dir})
	if err == nil {
		err = l.WaitReady(ctx, "cp1")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

// TestKilledLab: kill -9 of the lab's process loses nothing that etcd acknowledged.
func TestKilledLab(t *testing.T) {
	r := newRig(t)
	must(t, r.lab.FromConfigured(r.ctx, []lab.Configured{{
		Spec: node.Spec{Name: "cp1", Address: r.addr(1)}, Config: r.config(mtype.TypeControlPlane, "cp1"),
	}}, "cp1"))
	cl, err := r.lab.EtcdClient(r.ctx)
	must(t, err)
	defer cl.Close()
	if _, err := lab.New(r.ctx, lab.Options{StateDir: r.dir}); err == nil {
		t.Fatal("two labs run on one folder")
	}
	must(t, r.lab.Close())

	cmd := exec.CommandContext(r.ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+r.dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the lab in another process said %q, %v", line, err)
	}
	must(t, r.lab.Wait(r.ctx, "a write to the other process's etcd", func() bool {
		_, err := cl.Put(r.ctx, "kept", "yes")
		return err == nil
	}))
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Fatal("the other process ended by itself")
	}

	r.open()
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	resp, err := cl.Get(r.ctx, "kept")
	must(t, err)
	if len(resp.Kvs) != 1 {
		t.Error("a write that was acknowledged is gone")
	}
}
