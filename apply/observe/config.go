package observe

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// Comparer compares two configurations by meaning, secret values included, and says of each differing leaf what
// changing it does on a node of that minor version of Talos (0: not known). The paths are masked and sorted; effect is
// the most disruptive now, "none" where they are equal. An error holds nothing of the configurations.
type Comparer func(minor int, running, wish []byte) (Compared, error)

// Compared is the outcome of a Comparer.
type Compared struct {
	Equal  bool
	Effect string
	Paths  []plan.PathFact
}

// comparison is kept, for most reads find what the read before found.
type comparison struct {
	key  string
	fact plan.ConfigFact
}

// config reads the configuration, which needs the role admin, and compares it with the wish. What can't be compared
// stays nil.
func (r *read) config(ctx context.Context, _ *talos.Client) error {
	admin, err := r.cluster.talos.Secure(r.machine.Endpoint, talos.Admin)
	if err != nil {
		return err
	}
	cfg, err := admin.MachineConfig(ctx)
	if talos.IsUnreachable(err) {
		return err
	}
	if err != nil {
		r.facts.Error = err.Error()
		return nil
	}
	if r.machine.Wish.Empty() {
		return nil
	}
	key := r.key(cfg)
	if r.compared.key != key {
		fact, err := r.compare(cfg)
		if err != nil {
			r.facts.Error = "its configuration can't be compared with the wish"
			return nil
		}
		r.compared = comparison{key: key, fact: *fact}
	}
	fact := r.compared.fact
	fact.At, fact.ForDigest = r.facts.At, r.machine.Digest
	r.facts.Config = &fact
	return nil
}

// key is made of everything that the comparison depends on. It is kept in memory alone.
func (r *read) key(cfg *talos.Config) string {
	h := sha256.New()
	part := func(b []byte) {
		h.Write([]byte(strconv.Itoa(len(b)) + ":"))
		h.Write(b)
	}
	part(cfg.Running.Reveal())
	if cfg.Stored != nil {
		part(cfg.Stored.Reveal())
	}
	part(r.machine.Wish.Reveal())
	part(r.spec.FingerprintKey)
	part([]byte(strconv.Itoa(r.minor)))
	return string(h.Sum(nil))
}

func (r *read) compare(cfg *talos.Config) (*plan.ConfigFact, error) {
	wish := r.machine.Wish.Reveal()
	got, err := r.observer.opt.Compare(r.minor, cfg.Running.Reveal(), wish)
	if err != nil {
		return nil, err
	}
	fact := &plan.ConfigFact{Equal: got.Equal, PersistentEqual: true, Effect: got.Effect, Paths: got.Paths, Running: fingerprint(r.spec.FingerprintKey, cfg.Running)}
	if cfg.Stored != nil {
		stored, err := r.observer.opt.Compare(r.minor, cfg.Stored.Reveal(), wish)
		if err != nil {
			return nil, err
		}
		fact.PersistentEqual = stored.Equal
		fact.Staged = stored.Equal && !got.Equal
	}
	fact.TryPending = fact.Equal && !fact.PersistentEqual
	return fact, nil
}

// fingerprint of a configuration by meaning: comments and the order of documents and keys don't count.
func fingerprint(key []byte, config secret.Bytes) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("ichor running configuration\x00"))
	docs, err := mask.Decode(config.Reveal())
	if err != nil {
		h.Write(config.Reveal())
	} else {
		h.Write(mask.Render{Documents: docs}.JSON())
	}
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// minorOf gives 13 for v1.13.5, 0 where it can't be told.
func minorOf(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 || parts[0] != "1" {
		return 0
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil {
		return 0
	}
	return n
}
