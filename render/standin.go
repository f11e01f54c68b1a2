package render

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// shapeFunc makes a stand-in of one shape. n tells stand-ins apart.
type shapeFunc func(n int) string

// shapes are what encrypted strings may have to look like. The first that Talos takes is used.
var shapes = []shapeFunc{
	func(n int) string { return fmt.Sprintf("ichor-stand-in-%d", n) },
	func(n int) string { return base64.StdEncoding.EncodeToString(standInBytes(n, 32)) },
	func(n int) string { return pemOf(n, false, true) },
	func(n int) string { return pemOf(n, true, true) },
	func(n int) string { return pemOf(n, true, false) },
	func(n int) string { return fmt.Sprintf("https://stand-in-%d.invalid", n) },
	func(n int) string { return fmt.Sprintf("tcp://stand-in-%d.invalid:5514/", n) },
	func(n int) string { return fmt.Sprintf("%06d.%016d", n%1000000, n) },
	func(n int) string { return fmt.Sprintf("192.0.2.%d", n%250+1) },
	func(n int) string { return fmt.Sprintf("198.51.%d.0/24", n%250+1) },
	func(n int) string { return fmt.Sprintf("192.0.2.%d:443", n%250+1) },
	func(n int) string { return fmt.Sprintf("%dm0s", n%1000+1) },
	func(n int) string { return strconv.Itoa(n%30000 + 1024) },
	func(n int) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: stand-in-%d\n", n)
	},
}

// standInBytes are bytes that are no secret.
func standInBytes(n, size int) []byte {
	b, err := hkdf.Key(sha256.New, []byte("ichor stand-in value"), nil, strconv.Itoa(n), size)
	if err != nil {
		panic("derive stand-in: " + err.Error())
	}
	return b
}

// pemOf is a key, or certificate, in PEM, in base64 as Talos writes it or plain.
func pemOf(n int, key, encoded bool) string {
	b, err := bundle.StandIn(fmt.Sprintf("stand-in value %d", n), nil)
	if err != nil {
		panic("make stand-in: " + err.Error())
	}
	pair := b.Secrets().Certs.OS
	text := pair.Crt
	if key {
		text = pair.Key
	}
	if encoded {
		return base64.StdEncoding.EncodeToString(text)
	}
	return string(text)
}

// value is what the variant has in the place of the encrypted value number i of its entry.
func (l *cipherLeaf) value(v variant, i int) string {
	if v == opened {
		return string(l.plain.Reveal())
	}
	n := 2*i + 1
	if v == second {
		n++
	}
	switch l.typ {
	case "int":
		return strconv.Itoa(n + 2000)
	case "float":
		return fmt.Sprintf("%d.5", n+2000)
	case "bool":
		return strconv.FormatBool(v != second)
	}
	return shapes[l.shape](n)
}

// maxTried bounds the search of one entry, which a stranger may have written: trials times encrypted values in it.
const maxTried = 4000

// chooseShapes finds a stand-in for each encrypted string of an entry that Talos takes: it tries one shape after
// the other on a configuration with that entry alone, and keeps the one with the fewest errors. A path that the
// field's name gives away is not needed for it, and a field that a new Talos adds is served too.
func (j *job) chooseShapes(e *entry) {
	probe := probeMachine(e.patch)
	// What is wrong without the values too is not for a stand-in to mend.
	given := append(j.probe(probe, nil, first).lines, j.probe(probe, e, stripped).lines...)
	best := j.probe(probe, e, first)
	trials := maxTried / len(e.secret)
	for _, leaf := range e.secret {
		switch leaf.typ {
		case "int", "float", "bool":
			continue
		}
		for s := range shapes {
			if trials--; trials < 0 || best.within(given) {
				break
			}
			old := leaf.shape
			leaf.shape = s
			e.loaded[first] = e.parse(first)
			if r := j.probe(probe, e, first); r.score < best.score {
				best = r
			} else {
				leaf.shape = old
			}
		}
	}
	e.parseVariants()
}

// probeMachine stands for the machines that a patch selects: a worker where it selects workers alone.
func probeMachine(p *fleet.Patch) *fleet.Machine {
	role := v1alpha1.RoleControlPlane
	if r := p.Manifest.Spec.Selector.Roles; len(r) == 1 && r[0] == v1alpha1.RoleWorker {
		role = v1alpha1.RoleWorker
	}
	return &fleet.Machine{Object: fleet.Object{Kind: v1alpha1.KindTalosMachine, Name: "probe"}, Manifest: &v1alpha1.TalosMachine{
		Spec: v1alpha1.TalosMachineSpec{Role: role, Endpoint: "192.0.2.1"},
	}}
}

// probed is what Talos has to say about a probe. The score counts its complaints; one that stops the render counts
// for many.
type probed struct {
	lines []string
	score int
}

// within tells whether there is no complaint beside the given ones.
func (p probed) within(given []string) bool {
	for _, line := range p.lines {
		if !slices.Contains(given, line) {
			return false
		}
	}
	return true
}

// probe renders a machine with one entry.
func (j *job) probe(m *fleet.Machine, e *entry, v variant) probed {
	if j.incomplete != "" {
		return probed{}
	}
	docs, err := j.base(m, identityOf(m))
	if err != nil {
		return probed{}
	}
	if e != nil {
		err = e.loaded[v].err
		if err == nil {
			docs, _, err = apply(docs, e.loaded[v].patch)
		}
		if err != nil {
			lines := complaints(err)
			return probed{lines: lines, score: 1000 + len(lines)}
		}
	}
	_, err = validate(docs)
	lines := complaints(err)
	return probed{lines: lines, score: len(lines)}
}

// complaints takes Talos's error apart, one line each.
func complaints(err error) []string {
	if err == nil {
		return nil
	}
	var out []string
	for _, line := range strings.Split(err.Error(), "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "* "))
		if line == "" || errorCount.MatchString(line) {
			continue
		}
		out = append(out, line)
	}
	return out
}
