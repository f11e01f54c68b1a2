package git

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"

	"ichor.maesh.dev/ichor/schemas/secret"
)

// TokenSource gives a token that is valid now (a GitHub App's installation token, say).
type TokenSource func(context.Context) (secret.Bytes, error)

// Auth is how to log in. The zero value is anonymous. Files are read again for every operation, so that a rotated
// credential needs no restart.
type Auth struct {
	// Username for HTTP, default "x-access-token" (what GitHub wants with an App token; others ignore it).
	Username string
	// Source, Token and TokenFile give the HTTP password; the first that is set counts.
	Source    TokenSource
	Token     secret.Bytes
	TokenFile string
	// SSHKeyFile and KnownHostsFile are for ssh URLs; SSHPassphraseFile opens an encrypted key.
	SSHKeyFile        string
	SSHPassphraseFile string
	KnownHostsFile    string
}

// http tells whether there is a credential for HTTP.
func (a Auth) http() bool { return a.Source != nil || !a.Token.Empty() || a.TokenFile != "" }

// method gives go-git's form of the credential, nil when anonymous.
func (a Auth) method(ctx context.Context, ep *transport.Endpoint) (transport.AuthMethod, error) {
	switch ep.Protocol {
	case "http", "https":
		if !a.http() {
			return nil, nil
		}
		token, err := a.token(ctx)
		if err != nil {
			return nil, failAs("read Git credential", ClassCredential, err)
		}
		user := a.Username
		if user == "" {
			user = "x-access-token"
		}
		return &basicAuth{user: user, token: token}, nil
	case "ssh":
		m, err := a.sshMethod(ep)
		if err != nil {
			return nil, failAs("read SSH credential", ClassCredential, err)
		}
		return m, nil
	}
	return nil, nil
}

func (a Auth) token(ctx context.Context) (secret.Bytes, error) {
	switch {
	case a.Source != nil:
		return a.Source(ctx)
	case !a.Token.Empty():
		return a.Token, nil
	}
	return readSecretFile(a.TokenFile)
}

func readSecretFile(path string) (secret.Bytes, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return secret.Bytes{}, err
	}
	s := strings.TrimSpace(string(b))
	if s == "" {
		return secret.Bytes{}, fmt.Errorf("file %s is empty", path)
	}
	if strings.ContainsAny(s, "\r\n") {
		return secret.Bytes{}, fmt.Errorf("file %s has more than one line", path)
	}
	return secret.FromString(s), nil
}

func (a Auth) sshMethod(ep *transport.Endpoint) (transport.AuthMethod, error) {
	if a.SSHKeyFile == "" || a.KnownHostsFile == "" {
		return nil, errors.New("an ssh URL needs an SSH key file and a known_hosts file")
	}
	var pass secret.Bytes
	if a.SSHPassphraseFile != "" {
		p, err := readSecretFile(a.SSHPassphraseFile)
		if err != nil {
			return nil, err
		}
		pass = p
	}
	user := ep.User
	if user == "" {
		user = "git"
	}
	keys, err := gitssh.NewPublicKeysFromFile(user, a.SSHKeyFile, string(pass.Reveal()))
	if err != nil {
		return nil, err
	}
	db, err := gitssh.NewKnownHostsDb(a.KnownHostsFile)
	if err != nil {
		return nil, err
	}
	// With a callback of our own go-git leaves the algorithms to us; without them a host that has several keys
	// offers one that known_hosts doesn't list and looks like an attacker.
	keys.HostKeyCallback = db.HostKeyCallback()
	keys.HostKeyAlgorithms = db.HostKeyAlgorithms(sshAddress(ep))
	return keys, nil
}

// basicAuth is go-git's HTTP AuthMethod over a secret that never prints.
type basicAuth struct {
	user  string
	token secret.Bytes
}

func (*basicAuth) Name() string              { return "http-basic-auth" }
func (b *basicAuth) String() string          { return b.Name() + " - " + b.user + ":" + secret.Redacted }
func (b *basicAuth) SetAuth(r *http.Request) { r.SetBasicAuth(b.user, string(b.token.Reveal())) }
