package github

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/rest"
)

// App is a GitHub App's login.
type App struct {
	// ID of the App (its client ID works too).
	ID string
	// InstallationID; 0 asks for the repository's.
	InstallationID int64
	// KeyFile holds the private key in PEM; it is read again for each new token.
	KeyFile string
}

func tokensOf(o Options, shared rest.Options) (rest.Tokens, error) {
	if o.App == nil {
		return rest.TokenOf(o.TokenFile, o.Token), nil
	}
	if o.App.ID == "" || o.App.KeyFile == "" {
		return nil, errors.New("a GitHub App needs its ID and its key file")
	}
	tr, err := rest.Transport(shared)
	if err != nil {
		return nil, err
	}
	hc := &http.Client{Transport: tr, Timeout: o.Timeout, CheckRedirect: rest.SameHost}
	return &appTokens{app: *o.App, repo: o.Repository, base: shared.Base, http: hc, now: time.Now}, nil
}

// appTokens mints installation tokens. They last an hour and are renewed at four fifths of their life.
type appTokens struct {
	app  App
	repo string
	base *url.URL
	http *http.Client
	now  func() time.Time

	mu      sync.Mutex
	current secret.Bytes
	renew   time.Time
}

// Forget drops the cached token.
func (a *appTokens) Forget() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	had := !a.current.Empty()
	a.current = secret.Bytes{}
	return had
}

// Token gives an installation token that is valid now.
func (a *appTokens) Token(ctx context.Context) (secret.Bytes, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.current.Empty() && a.now().Before(a.renew) {
		return a.current, nil
	}
	id := a.app.InstallationID
	if id == 0 {
		var found struct {
			ID int64 `json:"id"`
		}
		if err := a.ask(ctx, http.MethodGet, "repos/"+a.repo+"/installation", &found); err != nil {
			return secret.Bytes{}, err
		}
		id = found.ID
	}
	var minted struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	if err := a.ask(ctx, http.MethodPost, "app/installations/"+strconv.FormatInt(id, 10)+"/access_tokens", &minted); err != nil {
		return secret.Bytes{}, err
	}
	if minted.Token == "" {
		return secret.Bytes{}, &forge.Error{Op: "get installation token", Kind: forge.KindAuth, Err: errors.New("forge gave none")}
	}
	now := a.now()
	life := minted.ExpiresAt.Sub(now)
	if life <= 0 || life > time.Hour {
		life = time.Hour // the clocks differ; the token's life is documented
	}
	a.current, a.renew = secret.FromString(minted.Token), now.Add(life*4/5)
	return a.current, nil
}

func (a *appTokens) ask(ctx context.Context, method, path string, into any) error {
	op := "log in as GitHub App"
	jwt, err := a.jwt()
	if err != nil {
		return &forge.Error{Op: op, Kind: forge.KindAuth, Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base.JoinPath(path).String(), nil)
	if err != nil {
		return &forge.Error{Op: op, Kind: forge.KindPermanent, Err: err}
	}
	req.Header.Set("Authorization", "Bearer "+jwt)
	req.Header.Set("Accept", "application/vnd.github+json")
	resp, err := a.http.Do(req)
	if err != nil {
		return fault(op, err)
	}
	defer resp.Body.Close() //nolint:errcheck // what matters was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return fault(op, err)
	case resp.StatusCode >= 500:
		return &forge.Error{Op: op, Kind: forge.KindTransient, Err: fmt.Errorf("forge answers %d", resp.StatusCode)}
	case resp.StatusCode == http.StatusTooManyRequests:
		return &forge.Error{Op: op, Kind: forge.KindRate, Until: rest.RetryAt(resp), Err: errors.New("forge answers 429")}
	case resp.StatusCode >= 300:
		return &forge.Error{Op: op, Kind: forge.KindAuth, Err: fmt.Errorf("forge answers %d%s", resp.StatusCode, a.skew(resp))}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return &forge.Error{Op: op, Kind: forge.KindTransient, Err: errors.New("forge's answer is not JSON")}
	}
	return nil
}

// skew names a clock that is off, the usual cause of a refused login.
func (a *appTokens) skew(resp *http.Response) string {
	t, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return ""
	}
	if d := a.now().Sub(t).Round(time.Second); d > time.Minute || d < -time.Minute {
		return fmt.Sprintf("; this machine's clock differs from the forge's by %s", d)
	}
	return ""
}

// jwt signs the App's own token: issued a minute ago and valid for less than ten, for clocks that are a little off.
func (a *appTokens) jwt() (string, error) {
	key, err := readKey(a.app.KeyFile)
	if err != nil {
		return "", err
	}
	now := a.now()
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(8 * time.Minute).Unix(), "iss": a.app.ID})
	if err != nil {
		return "", err
	}
	enc := base64.RawURLEncoding
	text := enc.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + enc.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", err
	}
	return text + "." + enc.EncodeToString(sig), nil
}

func readKey(path string) (*rsa.PrivateKey, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM", path)
	}
	if strings.HasPrefix(block.Type, "RSA ") {
		return x509.ParsePKCS1PrivateKey(block.Bytes)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*rsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an RSA key", path)
	}
	return key, nil
}
