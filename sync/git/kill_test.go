package git_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// TestMain runs the victim of TestKilledWhileFetching when the test binary is started as it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("ICHOR_TEST_VICTIM_DIR"); dir != "" {
		victim(dir, os.Getenv("ICHOR_TEST_VICTIM_URL"))
		return
	}
	os.Exit(m.Run())
}

// victim opens the mirror and fetches until it is killed.
func victim(dir, url string) {
	m, err := git.Open(context.Background(), git.Options{Dir: dir, URL: url})
	if err != nil {
		fmt.Println("FAILED", err)
		return
	}
	fmt.Println("open")
	for {
		if mv, err := m.FetchBranch(context.Background(), "main"); err != nil {
			fmt.Println("FAILED", err)
		} else {
			fmt.Println("fetched", mv.New)
		}
	}
}

// A process that is killed while it fetches leaves nothing that stops the next one, and nothing that stays.
func TestKilledWhileFetching(t *testing.T) {
	s := gittest.Start(t)
	dir := t.TempDir()
	rnd := rand.New(rand.NewSource(1)) //nolint:gosec // a seed that can be repeated
	var tip atomic.Int64
	push := func() string {
		noise := make([]byte, 200_000)
		_, _ = rnd.Read(noise)
		c := s.Commit("c", "a", fmt.Sprint(tip.Add(1)), "noise", string(noise))
		s.Push("refs/heads/main")
		return c
	}
	push()
	for round := range 6 {
		push()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "ICHOR_TEST_VICTIM_DIR="+dir, "ICHOR_TEST_VICTIM_URL="+s.URL)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "open" {
			t.Fatalf("round %d: the store can't be opened: %s", round, lines.Text())
		}
		kill := time.AfterFunc(time.Duration(rnd.Intn(60))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		push()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "FAILED") {
				t.Errorf("round %d: %s", round, lines.Text())
			}
		}
		_ = cmd.Wait()
		kill.Stop()
	}
	last := push()
	m := open(t, s, func(o *git.Options) { o.Dir = dir })
	if mv := fetch(t, m, "main"); mv.New != last {
		t.Fatalf("%+v", mv)
	}
	for _, p := range []string{"mirror.git/tmp_*", "mirror.git/objects/tmp_*", "mirror.git/objects/pack/tmp_*"} {
		if left, _ := filepath.Glob(filepath.Join(dir, p)); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if n, err := m.StoreBytes(); err != nil || n > 5_000_000 { // 15 commits of 200 KB
		t.Errorf("%d bytes %v", n, err)
	}
}
