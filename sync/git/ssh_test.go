package git_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// sshServer runs git's own upload-pack and receive-pack behind an SSH server, for one client key.
type sshServer struct {
	addr   string
	host   ssh.Signer
	client ssh.PublicKey
	wg     sync.WaitGroup
}

func newKey(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s, pem.EncodeToMemory(block)
}

func startSSH(t *testing.T, client ssh.PublicKey) *sshServer {
	t.Helper()
	host, _ := newKey(t)
	s := &sshServer{host: host, client: client}
	conf := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(k.Marshal(), client.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	conf.AddHostKey(host)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	t.Cleanup(func() { _ = l.Close(); s.wg.Wait() })
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(c, conf) })
		}
	})
	return s
}

func (s *sshServer) serve(c net.Conn, conf *ssh.ServerConfig) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, chans, reqs, err := ssh.NewServerConn(c, conf)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(reqs)
	for nc := range chans {
		ch, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		for r := range reqs {
			if r.Type != "exec" {
				_ = r.Reply(false, nil)
				continue
			}
			_ = r.Reply(true, nil)
			s.exec(ch, string(r.Payload[4:]))
			_ = ch.Close()
			break
		}
	}
}

func (s *sshServer) exec(ch ssh.Channel, command string) {
	tool, path, _ := strings.Cut(command, " ")
	cmd := exec.Command("git", strings.TrimPrefix(tool, "git-"), strings.Trim(path, "'"))
	cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
	in, err := cmd.StdinPipe()
	if err != nil {
		return
	}
	go func() { _, _ = io.Copy(in, ch); _ = in.Close() }()
	code := byte(0)
	if cmd.Run() != nil {
		code = 1
	}
	_, _ = ch.SendRequest("exit-status", false, []byte{0, 0, 0, code})
}

func TestOverSSH(t *testing.T) {
	g := gittest.Start(t)
	c := g.Commit("one", "a", "1")
	g.Push("refs/heads/main")
	client, private := newKey(t)
	srv := startSSH(t, client.PublicKey())
	dir := t.TempDir()
	put := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	known := func(k ssh.PublicKey) []byte { return []byte(knownhosts.Line([]string{srv.addr}, k) + "\n") }
	key, right := put("key", private), put("known_hosts", known(srv.host.PublicKey()))
	mirror := func(key, hosts string) *git.Mirror {
		return open(t, g, func(o *git.Options) {
			o.URL = "ssh://git@" + srv.addr + g.Dir
			o.Auth = git.Auth{SSHKeyFile: key, KnownHostsFile: hosts}
			o.Timeout = 10 * time.Second
		})
	}
	m := mirror(key, right)
	if mv := fetch(t, m, "main"); mv.New != c {
		t.Fatalf("%+v", mv)
	}
	c2 := g.Commit("two", "a", "2")
	g.Push("refs/heads/main")
	if mv := fetch(t, m, "main"); mv.New != c2 || mv.Kind != git.MoveFastForward {
		t.Fatalf("%+v", mv)
	}
	b, err := m.Branch(status, git.BranchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	h, err := b.Commit(t.Context(), tipOf(t, b), []git.Change{{Path: "README.md", Data: []byte("x")}}, "m", when)
	if err != nil || g.Git("rev-parse", status) != h {
		t.Fatal(h, err)
	}

	other, otherPrivate := newKey(t)
	_, err = mirror(put("other", otherPrivate), right).FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassCredential)
	_, err = mirror(key, put("wrong_hosts", known(other.PublicKey()))).FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassTrust)
	unknown := []byte(knownhosts.Line([]string{"forge.example"}, other.PublicKey()) + "\n")
	_, err = mirror(key, put("unknown_hosts", unknown)).FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassTrust)
	_, err = mirror("", "").FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassCredential)
	_, err = mirror(filepath.Join(dir, "absent"), right).FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassCredential)

	// A server that takes the connection and says nothing does not hold the daemon up.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begun := time.Now()
	silent := open(t, g, func(o *git.Options) {
		o.URL = "ssh://git@" + l.Addr().String() + g.Dir
		o.Auth = git.Auth{SSHKeyFile: key, KnownHostsFile: put("silent_hosts", []byte(knownhosts.Line([]string{l.Addr().String()}, srv.host.PublicKey())+"\n"))}
		o.Timeout = 300 * time.Millisecond
	})
	_, err = silent.FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassTransient)
	if time.Since(begun) > 10*time.Second {
		t.Error("the deadline did not hold")
	}
}
