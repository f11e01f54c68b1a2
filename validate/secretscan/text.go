package secretscan

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"strings"

	"ichor.maesh.dev/ichor/schemas/secret"
)

var (
	pemBegin = []byte("-----BEGIN ")
	pemKey   = regexp.MustCompile(`^-----BEGIN ([A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?)-----`)
	// base64 of "-----BEGIN " at the three places where it can stand in a run of base64.
	pemBase64 = []byte("LS0tLS1CRUdJTi")
	ageBegin  = []byte("AGE-SECRET-KEY-")
	ageKey    = regexp.MustCompile(`^AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{50,}`)
)

// scanText finds what shows itself in any text: private keys in PEM, also in base64, and age identities.
func scanText(data []byte) []Finding {
	var out []Finding
	lines := newLineIndex(data)
	add := func(what, value string, offset int) {
		line, column := lines.place(offset)
		out = append(out, Finding{What: what, Line: line, Column: column, Digest: digestOf(value), Value: secret.FromString(value)})
	}
	each(data, pemBegin, func(offset int) int {
		what, value, ok := pemAt(data[offset:])
		if ok {
			add(what, value, offset)
		}
		return len(value)
	})
	each(data, pemBase64, func(offset int) int {
		run, length := base64Run(data[offset:])
		if keyInBase64(string(run)) {
			add("a private key (base64 of PEM)", string(run), offset)
		}
		return length
	})
	each(data, ageBegin, func(offset int) int {
		m := ageKey.Find(data[offset:min(len(data), offset+maxSecret)])
		if m != nil {
			add("an age identity", string(m), offset)
		}
		return len(m)
	})
	return out
}

// maxSecret bounds how far a secret that begins somewhere is followed, in bytes, so that a file which begins one
// everywhere costs no more than others. The longest RSA keys have a tenth of it.
const maxSecret = 64 << 10

// each calls f with the offset of every occurrence; f gives how many bytes it has dealt with.
func each(data, what []byte, f func(offset int) int) {
	for at := 0; at < len(data); {
		i := bytes.Index(data[at:], what)
		if i < 0 {
			return
		}
		at += i
		at += max(len(what), f(at))
	}
}

// minPEMBody is how much base64 a real key has at least; documentation shows less, or dots.
const minPEMBody = 40

// pemAt reads a private key in PEM that begins here, also one whose lines are joined by \n escapes.
func pemAt(data []byte) (what, value string, ok bool) {
	data = data[:min(len(data), maxSecret)]
	m := pemKey.FindSubmatch(data)
	if m == nil {
		return "", "", false
	}
	label := string(m[1])
	body := data[len(m[0]):]
	end := bytes.Index(body, []byte("-----END "+label+"-----"))
	if end < 0 {
		end = min(len(body), 4096)
	}
	text := strings.NewReplacer(`\n`, "", `\r`, "").Replace(string(body[:end]))
	if strings.Contains(text, "...") || strings.Contains(text, "…") {
		return "", "", false
	}
	n := 0
	for i := range len(text) {
		if isBase64(text[i]) {
			n++
		}
	}
	if n < minPEMBody {
		return "", "", false
	}
	return "a private key (PEM, " + strings.ToLower(label) + ")", text, true
}

func isBase64(b byte) bool {
	return b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '+' || b == '/' || b == '='
}

// base64Run is the base64 that begins here, and how many bytes it takes; a run that is wrapped goes on in the next line.
func base64Run(data []byte) (run []byte, length int) {
	data = data[:min(len(data), maxSecret)]
	var out []byte
	for i := 0; i < len(data); i++ {
		switch b := data[i]; {
		case isBase64(b):
			out = append(out, b)
		case b == '\n' || b == '\r' || b == ' ' || b == '\t':
			// Only a full line goes on: "key: …\ncrt: …" must not be joined.
			rest := bytes.TrimLeft(data[i:], " \t\r\n")
			word := rest[:wordLen(rest)]
			if len(word) < 16 || (len(rest) > len(word) && rest[len(word)] == ':') || bytes.HasSuffix(out, []byte("=")) {
				return out, i
			}
			i = len(data) - len(rest) - 1
		default:
			return out, i
		}
	}
	return out, len(data)
}

func wordLen(data []byte) int {
	n := 0
	for n < len(data) && isBase64(data[n]) {
		n++
	}
	return n
}

// keyInBase64 tells whether base64 holds a private key or an age identity.
func keyInBase64(s string) bool {
	s = strings.TrimRight(strings.Join(strings.Fields(s), ""), "=")
	s = s[:len(s)-len(s)%4+remainder(len(s)%4)]
	plain, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil && len(plain) == 0 {
		return false
	}
	if i := bytes.Index(plain, ageBegin); i >= 0 && ageKey.Match(plain[i:]) {
		return true
	}
	for {
		i := bytes.Index(plain, pemBegin)
		if i < 0 {
			return false
		}
		if _, _, ok := pemAt(plain[i:]); ok {
			return true
		}
		plain = plain[i+len(pemBegin):]
	}
}

// remainder is how much of the last group of base64 can be decoded.
func remainder(n int) int {
	if n == 1 {
		return 0
	}
	return n
}

// lineFields are secrets by field name in text that is no YAML or JSON: a snippet in Markdown, a template, an INI or
// environment file. Each needs the shape of a real value, so that prose is left alone.
var lineFields = []struct {
	name  string
	what  string
	value *regexp.Regexp
}{
	{"secretboxencryptionsecret", "the secretbox encryption key", base64Of32},
	{"aescbcencryptionsecret", "the AES encryption key", base64Of32},
	{"bootstraptoken", "the bootstrap token", tokenShape},
	{"token", "a Talos or bootstrap token", tokenShape},
	{"privatekey", "a WireGuard private key", base64Of32},
	{"presharedkey", "a WireGuard preshared key", base64Of32},
	{"secretaccesskey", "an S3 secret access key", s3Shape},
	{"aws_secret_access_key", "an S3 secret access key", s3Shape},
}

var (
	tokenShape = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
	base64Of32 = regexp.MustCompile(`^[A-Za-z0-9+/]{43}=$`)
	s3Shape    = regexp.MustCompile(`^[A-Za-z0-9/+]{16,128}=*$`)
	lineAssign = regexp.MustCompile(`(?i)([a-z_]*(?:secret|token|privatekey|presharedkey|secret_?access_?key))["']?\s*[:=]\s*["']?([A-Za-z0-9+/.=]{16,})`)
)

// scanLines finds secrets by the name of their field, line by line.
func scanLines(data []byte) []Finding {
	var out []Finding
	lines := newLineIndex(data)
	for _, m := range lineAssign.FindAllSubmatchIndex(data, -1) {
		name := strings.ToLower(string(data[m[2]:m[3]]))
		value := string(data[m[4]:m[5]])
		for _, f := range lineFields {
			if f.name != name || !f.value.MatchString(value) || placeholder(value) {
				continue
			}
			line, column := lines.place(m[4])
			out = append(out, Finding{What: f.what, Line: line, Column: column, Digest: digestOf(value), Value: secret.FromString(value)})
			break
		}
	}
	return out
}
