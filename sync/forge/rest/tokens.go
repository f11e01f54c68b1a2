package rest

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/sync/forge"
)

// Tokens gives the credential of each request.
type Tokens interface {
	// Token gives one that is valid now, empty for none.
	Token(ctx context.Context) (secret.Bytes, error)
	// Forget drops what is cached, and tells whether another one may come.
	Forget() bool
}

// TokenOf is the usual choice: a file if one is named, else a fixed token, which may be empty.
func TokenOf(file string, fixed secret.Bytes) Tokens {
	if file != "" {
		return fileToken(file)
	}
	return fixedToken{fixed}
}

type fixedToken struct{ t secret.Bytes }

func (f fixedToken) Token(context.Context) (secret.Bytes, error) { return f.t, nil }
func (fixedToken) Forget() bool                                  { return false }

// fileToken reads the file for each request: a rotated token needs no restart.
type fileToken string

func (f fileToken) Token(context.Context) (secret.Bytes, error) {
	b, err := os.ReadFile(string(f))
	if err != nil {
		return secret.Bytes{}, &forge.Error{Op: "read token file", Kind: forge.KindAuth, Err: err}
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 || bytes.ContainsAny(b, "\r\n") {
		return secret.Bytes{}, &forge.Error{Op: "read token file", Kind: forge.KindAuth, Err: fmt.Errorf("%s does not hold one token", string(f))}
	}
	return secret.New(b), nil
}

func (fileToken) Forget() bool { return false }
