// Command demo tells the main job of Ichor as a story in the terminal, on simulated Talos nodes with real etcd members:
// make demo. It drives the two binaries as a person would, and exits non-zero when any step of the story didn't happen.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "folder with ichor and ichor-lab")
	dir := flag.String("dir", "", "folder to work in (default: a new temporary one, kept)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *bin, *dir)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\n✘ the story stopped here: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ichor-demo-"); err != nil {
			return err
		}
	}
	s := &story{ctx: ctx, bin: bin, dir: dir, begun: time.Now()}
	defer s.end()
	for _, step := range []func() error{
		s.startLab, s.startIchor, s.bringUp, s.writeAllTheTime, s.brokenPullRequest, s.backupInside, s.goodChange,
		s.cutOff, s.finish,
	} {
		if err := step(); err != nil {
			s.explain()
			return err
		}
	}
	return nil
}
