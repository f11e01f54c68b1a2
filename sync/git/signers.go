package git

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"golang.org/x/crypto/ssh"
)

// Signers are those whose signatures count. They come from Ichor's own configuration, never from the repository: else a
// commit could bring the key that it is signed with.
type Signers struct {
	ssh []sshSigner
	pgp openpgp.EntityList
	now func() time.Time
}

type sshSigner struct {
	name          string
	key           ssh.PublicKey
	after, before time.Time
}

// LoadSigners reads SSH keys in the form of ssh-keygen's allowed_signers (ssh-keygen(1), "ALLOWED SIGNERS") and armored PGP
// keys; "" is none. Of the options of a line, namespaces, valid-after and valid-before are known; another one is an
// error, and so is a file without a key.
func LoadSigners(allowedSignersFile, pgpKeysFile string) (*Signers, error) {
	s := &Signers{now: time.Now}
	if allowedSignersFile != "" {
		b, err := os.ReadFile(allowedSignersFile)
		if err != nil {
			return nil, fmt.Errorf("read allowed signers: %w", err)
		}
		if err := s.addSSH(b); err != nil {
			return nil, fmt.Errorf("read allowed signers: %s: %w", allowedSignersFile, err)
		}
	}
	if pgpKeysFile != "" {
		b, err := os.ReadFile(pgpKeysFile)
		if err != nil {
			return nil, fmt.Errorf("read PGP keys: %w", err)
		}
		if err := s.addPGP(b); err != nil {
			return nil, fmt.Errorf("read PGP keys: %s: %w", pgpKeysFile, err)
		}
	}
	return s, nil
}

func (s *Signers) addSSH(file []byte) error {
	n := 0
	for line := range bytes.Lines(file) {
		n++
		text := strings.TrimSpace(string(line))
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		signer, ok, err := parseSigner(text)
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if ok {
			s.ssh = append(s.ssh, signer)
		}
	}
	if len(s.ssh) == 0 {
		return errors.New("holds no key that may sign commits")
	}
	return nil
}

// parseSigner reads a line; false where its namespaces leave commits out.
func parseSigner(line string) (sshSigner, bool, error) {
	name, rest := cutPrincipals(line)
	key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(rest))
	if err != nil {
		return sshSigner{}, false, errors.New("is not \"principals [options] type key\"")
	}
	out := sshSigner{name: name, key: key}
	git := true
	for _, o := range options {
		k, v, _ := strings.Cut(o, "=")
		v = strings.Trim(v, `"`)
		switch strings.ToLower(k) {
		case "namespaces":
			git = slices.Contains(strings.Split(v, ","), sshNamespace)
		case "valid-after":
			out.after, err = signerTime(v)
		case "valid-before":
			out.before, err = signerTime(v)
		default:
			return out, false, fmt.Errorf("option %s is not supported", k)
		}
		if err != nil {
			return out, false, fmt.Errorf("%s: %w", k, err)
		}
	}
	if err := strongEnough(key); err != nil {
		return out, false, err
	}
	return out, git, nil
}

// cutPrincipals takes the first field off, which may be quoted.
func cutPrincipals(line string) (string, string) {
	if after, quoted := strings.CutPrefix(line, `"`); quoted {
		name, rest, _ := strings.Cut(after, `"`)
		return name, strings.TrimSpace(rest)
	}
	i := strings.IndexAny(line, " \t")
	if i < 0 {
		return line, ""
	}
	return line[:i], strings.TrimSpace(line[i:])
}

// signerTime reads YYYYMMDD or YYYYMMDDHHMM[SS], in local time or, with a Z, in UTC.
func signerTime(v string) (time.Time, error) {
	digits, utc := strings.CutSuffix(v, "Z")
	form, ok := map[int]string{8: "20060102", 12: "200601021504", 14: "20060102150405"}[len(digits)]
	if !ok {
		return time.Time{}, fmt.Errorf("%q is no time such as 20260102 or 20260102150405Z", v)
	}
	loc := time.Local
	if utc {
		loc = time.UTC
	}
	return time.ParseInLocation(form, digits, loc)
}

func strongEnough(key ssh.PublicKey) error {
	if _, cert := key.(*ssh.Certificate); cert {
		return errors.New("certificates are not supported; name the key itself")
	}
	ck, ok := key.(ssh.CryptoPublicKey)
	if !ok {
		return nil
	}
	if k, ok := ck.CryptoPublicKey().(*rsa.PublicKey); ok && k.N.BitLen() < 2048 {
		return fmt.Errorf("RSA key of %d bits is too short; at least 2048", k.N.BitLen())
	}
	if key.Type() == ssh.KeyAlgoDSA { //nolint:staticcheck // named to refuse it
		return errors.New("DSA keys are not supported")
	}
	return nil
}

// sshNamespace keeps signatures of other things (mails, files) from counting for commits.
const sshNamespace = "git"

// judgeSSH follows OpenSSH's PROTOCOL.sshsig.
func (s *Signers) judgeSSH(payload, sig []byte, when time.Time) Signature {
	broken := Signature{Problem: "its SSH signature can't be read"}
	blob, err := armored(sig, "SSH SIGNATURE")
	if err != nil {
		return broken
	}
	rest, ok := bytes.CutPrefix(blob, []byte("SSHSIG"))
	if !ok {
		return broken
	}
	var in struct {
		Version                        uint32
		Key                            []byte
		Namespace, Reserved, Algorithm string
		Signature                      []byte
	}
	if err := ssh.Unmarshal(rest, &in); err != nil || in.Version != 1 {
		return broken
	}
	key, err := ssh.ParsePublicKey(in.Key)
	if err != nil {
		return broken
	}
	out := Signature{Key: "SSH key " + ssh.FingerprintSHA256(key)}
	var signature struct {
		Format string
		Blob   []byte
		Rest   []byte `ssh:"rest"`
	}
	if err := ssh.Unmarshal(in.Signature, &signature); err != nil {
		return broken
	}
	hash := map[string]func([]byte) []byte{
		"sha256": func(b []byte) []byte { h := sha256.Sum256(b); return h[:] },
		"sha512": func(b []byte) []byte { h := sha512.Sum512(b); return h[:] },
	}[in.Algorithm]
	switch {
	case in.Namespace != sshNamespace:
		out.Problem = fmt.Sprintf("its SSH signature is for %q, not for commits", clip(in.Namespace, 40))
		return out
	case hash == nil || signature.Format == ssh.KeyAlgoRSA: // the latter is SHA-1
		out.Problem = "its SSH signature uses an algorithm that is not accepted"
		return out
	}
	signed := append([]byte("SSHSIG"), ssh.Marshal(struct {
		Namespace, Reserved, Algorithm string
		Hash                           []byte
	}{in.Namespace, in.Reserved, in.Algorithm, hash(payload)})...)
	if err := key.Verify(signed, &ssh.Signature{Format: signature.Format, Blob: signature.Blob, Rest: signature.Rest}); err != nil {
		out.Problem = "its SSH signature does not fit its content"
		return out
	}
	out.Signer, out.Problem = s.allowed(in.Key, when)
	if out.Problem != "" {
		out.Problem += " (" + out.Key + ")"
	}
	return out
}

// allowed finds the signer of a key. A key counts for commits of the time that its line gives it, as with git itself.
func (s *Signers) allowed(key []byte, when time.Time) (name, problem string) {
	problem = "its key is not one of those that may sign"
	for _, c := range s.ssh {
		switch {
		case !bytes.Equal(c.key.Marshal(), key):
		case !c.after.IsZero() && when.Before(c.after):
			problem = "its key was not valid yet when it was committed"
		case !c.before.IsZero() && !when.Before(c.before):
			problem = "its key was not valid any more when it was committed"
		default:
			return c.name, ""
		}
	}
	return "", problem
}

// addPGP reads all armored blocks of a file.
func (s *Signers) addPGP(file []byte) error {
	const begin = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	text := string(file)
	if strings.Contains(text, "PRIVATE KEY BLOCK") {
		return errors.New("holds a private key; export the public one")
	}
	for {
		i := strings.Index(text, begin)
		if i < 0 {
			break
		}
		text = text[i:]
		next := strings.Index(text[len(begin):], begin)
		part := text
		if next >= 0 {
			part = text[:next+len(begin)]
		}
		block, err := armor.Decode(strings.NewReader(part))
		if err != nil {
			return errors.New("its armor is broken")
		}
		list, err := openpgp.ReadKeyRing(block.Body)
		if err != nil {
			return fmt.Errorf("a key can't be read: %w", err)
		}
		s.pgp = append(s.pgp, list...)
		text = text[len(part):]
	}
	if len(s.pgp) == 0 {
		return errors.New("holds no armored public key (gpg --armor --export)")
	}
	return nil
}

func (s *Signers) judgePGP(payload, sig []byte) Signature {
	out := Signature{Key: pgpKey(sig)}
	who, err := openpgp.CheckArmoredDetachedSignature(s.pgp, bytes.NewReader(payload), bytes.NewReader(sig), &packet.Config{Time: s.now})
	if who != nil {
		out.Key = "PGP key " + strings.ToUpper(hex.EncodeToString(who.PrimaryKey.Fingerprint))
		if id := who.PrimaryIdentity(); id != nil {
			out.Signer = id.Name
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, pgperrors.ErrUnknownIssuer):
		out.Problem = "its key is not one of those that may sign"
	case errors.Is(err, pgperrors.ErrKeyExpired):
		out.Problem = "its key has expired"
	case errors.Is(err, pgperrors.ErrSignatureExpired):
		out.Problem = "its signature has expired"
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		out.Problem = "its key was revoked"
	default:
		out.Problem = "its PGP signature does not fit its content"
	}
	if out.Problem != "" {
		out.Signer = ""
		if out.Key != "" {
			out.Problem += " (" + out.Key + ")"
		}
	}
	return out
}

// pgpKey names the key that a signature says it is by, "" where it doesn't.
func pgpKey(sig []byte) string {
	block, err := armor.Decode(bytes.NewReader(sig))
	if err != nil {
		return ""
	}
	r := packet.NewReader(block.Body)
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) || err != nil {
			return ""
		}
		if s, ok := p.(*packet.Signature); ok && s.IssuerKeyId != nil {
			return fmt.Sprintf("PGP key %016X", *s.IssuerKeyId)
		}
	}
}
