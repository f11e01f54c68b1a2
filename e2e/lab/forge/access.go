package forge

import (
	"crypto/sha256"
	"net/http"
	"strings"
)

// Rights of a token beyond reading.
type Rights struct {
	// Contents: push branches.
	Contents bool
	// Statuses: post commit statuses.
	Statuses bool
	// Pulls: open, edit and merge pull requests.
	Pulls bool
}

// identity is a token, kept as a digest only, and its user.
type identity struct {
	digest [sha256.Size]byte
	login  string
	rights Rights
}

func newIdentity(token, login string, rights Rights) identity {
	return identity{digest: sha256.Sum256([]byte(token)), login: login, rights: rights}
}

// AddToken lets another token in, with fewer rights for example. Tokens are not kept on disk.
func (f *Forge) AddToken(token, login string, rights Rights) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users = append(f.users, newIdentity(token, login, rights))
}

// RevokeToken makes a token as good as any wrong one.
func (f *Forge) RevokeToken(token string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := sha256.Sum256([]byte(token))
	for i, u := range f.users {
		if u.digest == d {
			f.users = append(f.users[:i:i], f.users[i+1:]...)
			return
		}
	}
}

// who tells whose token a request carries. given is false without one, ok false for a wrong one. Tokens come as
// Bearer, as token, or as the password (or, without one, the user name) of basic authentication.
func (f *Forge) who(r *http.Request) (id identity, given, ok bool) {
	token := ""
	kind, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch strings.ToLower(kind) {
	case "":
		return identity{}, false, true
	case "bearer", "token":
		token = strings.TrimSpace(value)
	case "basic":
		user, password, _ := r.BasicAuth()
		if token = password; token == "" || token == "x-oauth-basic" {
			token = user
		}
	}
	d := sha256.Sum256([]byte(token))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.users {
		if u.digest == d {
			return u, true, true
		}
	}
	return identity{}, true, false
}
