package git

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage"
)

// Signature is what is known of a commit's signature.
type Signature struct {
	// Problem says why the signature is not good, "" that it is.
	Problem string
	// Signer is who signed, as the keys' file names them; Key is the key's fingerprint, "" where it can't be told.
	Signer, Key string
}

// Signature judges the signature of a commit that was fetched, as git verify-commit does: over the commit's own bytes. An
// error means that the commit can't be read.
func (m *Mirror) Signature(commit string, by *Signers) (Signature, error) {
	op := opf("read the signature of %s", short(commit))
	if _, err := commitOf(m.store, op, commit); err != nil {
		return Signature{}, err
	}
	var raw []byte
	err := m.store.view(op, func(st storage.Storer) error {
		o, err := st.EncodedObject(plumbing.CommitObject, plumbing.NewHash(commit))
		if err != nil {
			return err
		}
		r, err := o.Reader()
		if err != nil {
			return err
		}
		raw, err = io.ReadAll(r)
		return errors.Join(err, r.Close())
	})
	if err != nil {
		return Signature{}, err
	}
	return by.judge(raw), nil
}

// judge a commit as it is stored.
func (s *Signers) judge(raw []byte) Signature {
	payload, sigs, when := splitCommit(raw)
	if len(sigs) == 0 {
		return Signature{Problem: "it is not signed"}
	}
	if len(sigs) > 1 || bytes.Count(sigs[0], []byte("-----BEGIN")) != 1 {
		return Signature{Problem: "it carries more than one signature"} // which one counts would be anyone's choice
	}
	switch {
	case bytes.HasPrefix(sigs[0], []byte("-----BEGIN SSH SIGNATURE-----")):
		return s.judgeSSH(payload, sigs[0], when)
	case bytes.HasPrefix(sigs[0], []byte("-----BEGIN PGP SIGNATURE-----")):
		return s.judgePGP(payload, sigs[0])
	}
	return Signature{Problem: "it is signed in a way that is not supported (SSH and PGP are)"}
}

// splitCommit takes the signatures out of a commit object: what is left is what was signed (gitformat-signature(5)). when
// is the committer's date.
func splitCommit(raw []byte) (payload []byte, sigs [][]byte, when time.Time) {
	head, body, _ := bytes.Cut(raw, []byte("\n\n"))
	var signed bytes.Buffer
	inSignature := false
	for line := range bytes.Lines(append(bytes.Clone(head), '\n')) {
		if line[0] == ' ' && inSignature {
			sigs[len(sigs)-1] = append(sigs[len(sigs)-1], line[1:]...)
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(" "))
		inSignature = string(name) == "gpgsig" || string(name) == "gpgsig-sha256"
		if inSignature {
			sigs = append(sigs, bytes.Clone(value))
			continue
		}
		if string(name) == "committer" {
			when = committed(value)
		}
		signed.Write(line)
	}
	signed.WriteByte('\n')
	signed.Write(body)
	return signed.Bytes(), sigs, when
}

func committed(value []byte) time.Time {
	fields := strings.Fields(string(value))
	if len(fields) < 2 {
		return time.Time{}
	}
	var sec int64
	if _, err := fmt.Sscan(fields[len(fields)-2], &sec); err != nil {
		return time.Time{}
	}
	return time.Unix(sec, 0).UTC()
}

// armored takes the bytes out of an armor of a kind.
func armored(text []byte, kind string) ([]byte, error) {
	s := strings.TrimSpace(string(text))
	s, begun := strings.CutPrefix(s, "-----BEGIN "+kind+"-----")
	s, ended := strings.CutSuffix(s, "-----END "+kind+"-----")
	if !begun || !ended {
		return nil, errors.New("armor is broken")
	}
	return base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
}
