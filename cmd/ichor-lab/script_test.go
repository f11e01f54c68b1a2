package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/pflag"

	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/s3"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"ichor-lab": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}})
}

// nets gives each script a loopback network of its own.
var nets atomic.Int32

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			for _, kv := range [][2]string{
				{"NET", fmt.Sprintf("127.0.%d", 180+nets.Add(1))},
				{"HOME", env.WorkDir},
				{"ICHOR_LAB_STATE", filepath.Join(env.WorkDir, "state")},
				{"GIT_CONFIG_NOSYSTEM", "1"},
				{"GIT_AUTHOR_NAME", "ann"},
				{"GIT_AUTHOR_EMAIL", "ann@example.com"},
				{"GIT_COMMITTER_NAME", "ann"},
				{"GIT_COMMITTER_EMAIL", "ann@example.com"},
				{"GIT_TERMINAL_PROMPT", "0"},
				{"SOPS_AGE_KEY", ""},
				{s3.EnvServer, s3Server()},
				{"SOPS_AGE_KEY_FILE", ""},
			} {
				env.Setenv(kv[0], kv[1])
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"expand": expand, "ready": ready, "eventually": eventually, "env-file": envFile, "api": api, "post-status": postStatus, "s3-get": s3Get, "eventually-gone": eventuallyGone},
		Condition: func(cond string) (bool, error) {
			if cond != "s3" {
				return false, fmt.Errorf("condition %q is not known", cond)
			}
			_, err := s3.Find()
			return err == nil, nil
		},
	})
}

// s3Server is where the S3 server is, for scripts have a home folder of their own; "" when it is not built.
func s3Server() string {
	path, err := s3.Find()
	if err != nil {
		return ""
	}
	return path
}

// expand FILE...: puts $NET of the environment into files.
func expand(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		path := ts.MkAbs(name)
		ts.Check(os.WriteFile(path, []byte(strings.ReplaceAll(ts.ReadFile(name), "$NET", ts.Getenv("NET"))), 0o644))
	}
}

// ready: waits until the lab of this script answers.
func ready(ts *testscript.TestScript, _ bool, _ []string) {
	c := cli.NewClient(ts.Getenv("ICHOR_LAB_STATE"))
	var err error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err = c.Info(context.Background()); err == nil {
			return
		}
	}
	ts.Fatalf("the lab does not answer: %v", err)
}

// eventually PATTERN COMMAND...: runs a command until its output matches.
func eventually(ts *testscript.TestScript, _ bool, args []string) {
	re := regexp.MustCompile("(?m)" + args[0])
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := ts.Exec(args[1], args[2:]...); err == nil && re.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("waited in vain for %q; the last was\n%s", args[0], ts.ReadFile("stdout"))
}

// env-file: reads the lab's env file into the environment, and holds it against the daemon's own configuration.
func envFile(ts *testscript.TestScript, _ bool, _ []string) {
	var vars []string
	for line := range strings.Lines(ts.ReadFile(filepath.Join(ts.Getenv("ICHOR_LAB_STATE"), "env"))) {
		if kv, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); ok {
			name, value, _ := strings.Cut(kv, "=")
			ts.Setenv(name, value)
			vars = append(vars, kv)
		}
	}
	flags := pflag.NewFlagSet("ichor", pflag.ContinueOnError)
	config.AddFlags(flags)
	c, err := config.Load(flags, vars)
	ts.Check(err)
	if c.Repo == "" || c.Forge.URL == "" || c.TokenFile == "" {
		ts.Fatalf("ichor run would not find its way: %+v", c)
	}
	token, err := os.ReadFile(c.TokenFile)
	ts.Check(err)
	ts.Setenv("TOKEN", strings.TrimSpace(string(token)))
	ts.Setenv("CLONE", strings.Replace(c.Repo, "http://", "http://x:"+strings.TrimSpace(string(token))+"@", 1))
}

// api METHOD PATH [BODY]: asks the forge's API and prints status and answer.
func api(ts *testscript.TestScript, neg bool, args []string) {
	body := ""
	if len(args) > 2 {
		body = args[2]
	}
	req, err := http.NewRequest(args[0], ts.Getenv("ICHOR_FORGE_URL")+"/api/v3"+args[1], strings.NewReader(body))
	ts.Check(err)
	req.Header.Set("Authorization", "Bearer "+ts.Getenv("TOKEN"))
	resp, err := http.DefaultClient.Do(req)
	if neg {
		if err == nil {
			ts.Fatalf("an answer came: %s", resp.Status)
		}
		return
	}
	ts.Check(err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), resp.StatusCode, string(data))
}

// s3-get: lists the lab's bucket with the keys of the env file, and prints status and answer.
func s3Get(ts *testscript.TestScript, neg bool, _ []string) {
	req, err := http.NewRequest(http.MethodGet, ts.Getenv("ICHOR_LAB_S3_ENDPOINT")+"/"+ts.Getenv("ICHOR_LAB_S3_BUCKET")+"/", http.NoBody)
	ts.Check(err)
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	req = signer.SignV4(*req, ts.Getenv("AWS_ACCESS_KEY_ID"), ts.Getenv("AWS_SECRET_ACCESS_KEY"), "", ts.Getenv("AWS_REGION"))
	resp, err := (&http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if neg {
		if err == nil {
			ts.Fatalf("an answer came: %s", resp.Status)
		}
		return
	}
	ts.Check(err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), resp.StatusCode, strings.ReplaceAll(string(data), "\n", " "))
}

// eventually-gone PATH: waits until no process has a path of the script's folder among its arguments; with !, one has it now.
func eventuallyGone(ts *testscript.TestScript, neg bool, args []string) {
	path := []byte("\x00" + ts.MkAbs(args[0]) + "\x00")
	look := func() bool {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		ts.Check(err)
		return slices.ContainsFunc(files, func(f string) bool {
			cmdline, err := os.ReadFile(f)
			return err == nil && bytes.Contains(cmdline, path)
		})
	}
	found := look()
	for end := time.Now().Add(10 * time.Second); found != neg && time.Now().Before(end); found = look() {
		time.Sleep(20 * time.Millisecond)
	}
	if found != neg {
		ts.Fatalf("a process works on %s: %v", args[0], found)
	}
}

// post-status REF: posts a failed check on a branch's tip, as Ichor would.
func postStatus(ts *testscript.TestScript, _ bool, args []string) {
	st, err := cli.NewClient(ts.Getenv("ICHOR_LAB_STATE")).Status(context.Background(), args[0])
	ts.Check(err)
	api(ts, false, []string{"POST", "/repos/lab/fleet/statuses/" + st.SHA, `{"state":"failure","context":"ichor/check","description":"does not render","target_url":"http://x/report"}`})
}
