package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/render/bundle"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"ichor": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts tells what the commands do, on real folders and real Git repositories.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("GIT_CONFIG_NOSYSTEM", "1")
			for _, who := range []string{"AUTHOR", "COMMITTER"} {
				e.Setenv("GIT_"+who+"_NAME", "tester")
				e.Setenv("GIT_"+who+"_EMAIL", "tester@example.com")
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"secrets": makeSecrets, "example": copyExample, "mkfile": makeFile, "code": exitCode,
			"for-each-preset": eachPreset, "mode": fileMode, "talosctl": talosctl, "seal": sealFile,
		},
	})
}

// sealed has the encrypted files of the example, made once.
var sealed = sync.OnceValues(func() (map[string][]byte, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	_, plain, err := bundle.Generate("v1.13", secrets.NewClock())
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, text := range map[string][]byte{
		"secrets.sops.yaml": plain, "s3.sops.yaml": []byte("accessKeyID: a\nsecretAccessKey: b\n"),
	} {
		if out[name], err = bundle.Encrypt(text, name, []string{id.Recipient().String()}, ""); err != nil {
			return nil, err
		}
	}
	return out, nil
})

// makeSecrets writes the encrypted secrets bundle and credentials into a folder: secrets DIR.
func makeSecrets(ts *testscript.TestScript, _ bool, args []string) {
	files, err := sealed()
	ts.Check(err)
	for name, data := range files {
		ts.Check(os.WriteFile(filepath.Join(ts.MkAbs(args[0]), name), data, 0o644))
	}
}

// copyExample writes the example repository into a folder, with its secrets: example DIR.
func copyExample(ts *testscript.TestScript, neg bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	files, err := filepath.Glob(filepath.Join(packageDir, "../../validate/check/testdata/example/*.yaml"))
	ts.Check(err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		ts.Check(err)
		ts.Check(os.WriteFile(filepath.Join(dir, filepath.Base(f)), data, 0o644))
	}
	makeSecrets(ts, neg, args)
}

// exitCode runs ichor and compares its exit code: code N ARGS...
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec("ichor", args[1:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("run ichor: %v", err)
	}
	if want := args[0]; strconv.Itoa(got) != want {
		ts.Fatalf("ichor %s: exit code %d, want %s", strings.Join(args[1:], " "), got, want)
	}
}

// makeFile writes a line into a file: mkfile FILE TEXT.
func makeFile(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(args[1]+"\n"), 0o644))
}

// packageDir is where the test began: scripts run elsewhere.
var packageDir = func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return dir
}()
