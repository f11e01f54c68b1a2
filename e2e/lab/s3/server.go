package s3

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// EnvServer names the versitygw binary to use.
const EnvServer = "ICHOR_LAB_S3_SERVER"

// ErrNoServer says that there is no server to start.
var ErrNoServer = errors.New("the S3 server versitygw is not built")

// Find returns the path of the server: what $ICHOR_LAB_S3_SERVER names, the one on the PATH, or the
// newest that hack/tools.sh built. It builds nothing.
func Find() (string, error) {
	if path := os.Getenv(EnvServer); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("find the S3 server: $%s: %w", EnvServer, err)
		}
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("versitygw"); err == nil {
		return filepath.Abs(path)
	}
	cache := os.Getenv("ICHOR_TOOLS_DIR")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", ErrNoServer
		}
		cache = filepath.Join(user, "ichor-tools")
	}
	built, err := filepath.Glob(filepath.Join(cache, "versitygw-*", "versitygw"))
	if err != nil || len(built) == 0 {
		return "", ErrNoServer
	}
	age := func(path string) time.Time {
		info, err := os.Stat(path)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	return slices.MaxFunc(built, func(a, b string) int { return age(a).Compare(age(b)) }), nil
}

// Build builds the server with hack/tools.sh of the source tree that a folder lies in; it takes
// minutes the first time, and needs Go and its module proxy. progress gets what the build says.
func Build(ctx context.Context, dir string, progress *os.File) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		tool := filepath.Join(dir, "hack", "tools.sh")
		if _, err := os.Stat(filepath.Join(dir, "hack", "tools", "versitygw", "go.mod")); err == nil {
			cmd := exec.CommandContext(ctx, tool, "versitygw")
			cmd.Stderr = progress
			out, err := cmd.Output()
			if err != nil {
				return "", fmt.Errorf("build the S3 server with %s: %w", tool, err)
			}
			return strings.TrimSpace(string(out)), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%w, and this is not Ichor's source tree: run \"hack/tools.sh versitygw\" there, or name a versitygw with $%s", ErrNoServer, EnvServer)
		}
		dir = parent
	}
}

// server is the process of versitygw.
type server struct {
	addr netip.AddrPort
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	once sync.Once
}

// startServer starts the process and waits until it answers. It dies with this process, however
// that ends.
func startServer(ctx context.Context, o Options, keep kept) (*server, error) {
	addr, err := freePort(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for _, d := range []string{"data", "versions", "metadata"} {
		dirs[d] = filepath.Join(o.Dir, d)
		if err := os.MkdirAll(dirs[d], 0o700); err != nil {
			return nil, err
		}
	}
	args := []string{"--port", addr.String(), "--region", Region, "--quiet", "posix", "--versioning-dir", dirs["versions"]}
	if !hasXattrs(dirs["data"]) {
		args = append(args, "--sidecar", dirs["metadata"])
	}
	s := &server{addr: addr, done: make(chan struct{})}
	s.cmd = exec.Command(o.Server, append(args, dirs["data"])...)
	// keys by the environment: arguments are for all to see
	s.cmd.Env = append(plainEnv(), "ROOT_ACCESS_KEY="+keep.AccessKey, "ROOT_SECRET_KEY="+keep.SecretKey)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	var last string
	go func() {
		defer close(s.done)
		// The kernel sends the signal when the thread that started the process ends: keep it.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		lines := bufio.NewScanner(said)
		for lines.Scan() {
			last = lines.Text()
			o.Log.Debug("s3 server", "said", last)
		}
		if s.err = s.cmd.Wait(); last != "" {
			s.err = fmt.Errorf("%w: %s", s.err, last)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := s.answers(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// answers waits until the server answers anything at all.
func (s *server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr.String()+"/", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			return resp.Body.Close()
		}
		select {
		case <-s.done:
			return fmt.Errorf("the server ended: %w", s.err)
		case <-ctx.Done():
			return fmt.Errorf("wait for the server: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends the process and waits for it.
func (s *server) stop() error {
	s.once.Do(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		select {
		case <-s.done:
		case <-time.After(5 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	})
	return nil
}

// plainEnv is the environment without what configures the server: VGW_* and LOGFILE.
func plainEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "VGW_") || strings.HasPrefix(kv, "ROOT_") || strings.HasPrefix(kv, "LOGFILE=")
	})
}
