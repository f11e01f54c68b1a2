package fleet

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Kubernetes reads manifests as sigs.k8s.io/yaml does: YAML 1.1 scalars (yes, on and off are booleans, 010 is
// octal), then JSON's rules, where a number or a boolean that stands for a string is taken as its text. The parser
// used here knows YAML 1.2 scalars, so the plain ones are read anew from their text.

const (
	tagStr   = "!!str"
	tagNull  = "!!null"
	tagMerge = "!!merge"
)

var (
	yaml11Words = map[string]any{
		"": nil, "~": nil, "null": nil, "Null": nil, "NULL": nil,
		".nan": math.NaN(), ".NaN": math.NaN(), ".NAN": math.NaN(),
		".inf": math.Inf(1), ".Inf": math.Inf(1), ".INF": math.Inf(1),
		"+.inf": math.Inf(1), "+.Inf": math.Inf(1), "+.INF": math.Inf(1),
		"-.inf": math.Inf(-1), "-.Inf": math.Inf(-1), "-.INF": math.Inf(-1),
	}
	yaml11Float = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	yaml11Date  = regexp.MustCompile(`^[0-9]{4}-`)
)

func init() {
	for _, w := range []string{"y", "yes", "true", "on"} {
		yaml11Words[w], yaml11Words[strings.ToUpper(w)], yaml11Words[strings.ToUpper(w[:1])+w[1:]] = true, true, true
	}
	for _, w := range []string{"n", "no", "false", "off"} {
		yaml11Words[w], yaml11Words[strings.ToUpper(w)], yaml11Words[strings.ToUpper(w[:1])+w[1:]] = false, false, false
	}
}

// readScalar gives nil, bool, int64, uint64, float64 or string. ok is false for a tag that JSON has no value for, or
// a text that its tag does not allow.
func readScalar(n *yaml.Node) (value any, ok bool) {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Style&yaml.TaggedStyle == 0 {
		if n.Style&quoted != 0 {
			return n.Value, true
		}
		return resolve11(n.Value), true
	}
	if n.Tag == tagStr {
		return n.Value, true
	}
	v := resolve11(n.Value)
	switch n.Tag {
	case tagNull:
		return nil, v == nil
	case "!!bool":
		_, ok = v.(bool)
	case "!!int":
		switch v.(type) {
		case int64, uint64:
			ok = true
		}
	case "!!float":
		switch x := v.(type) {
		case int64:
			v, ok = float64(x), true
		case float64:
			ok = true
		}
	case "!!timestamp":
		_, ok = v.(string)
	}
	return v, ok
}

// resolve11 reads a plain scalar.
func resolve11(in string) any {
	if v, ok := yaml11Words[in]; ok {
		return v
	}
	switch c := in[0]; {
	case c == '.':
		if f, err := strconv.ParseFloat(in, 64); err == nil {
			return f
		}
		return in
	case c != '+' && c != '-' && (c < '0' || c > '9'):
		return in
	case yaml11Date.MatchString(in):
		// A date: sigs.k8s.io/yaml keeps it as text; nothing that begins so is a number.
		return in
	}
	return resolveNumber11(in)
}

// resolveNumber11 reads what begins with a sign or a digit.
func resolveNumber11(in string) any {
	plain := strings.ReplaceAll(in, "_", "")
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return u
	}
	if yaml11Float.MatchString(plain) {
		if f, err := strconv.ParseFloat(plain, 64); err == nil {
			return f
		}
	}
	if digits, ok := strings.CutPrefix(plain, "0b"); ok {
		// A sign after the prefix, which Go's own reading does not know.
		if i, err := strconv.ParseInt(digits, 2, 64); err == nil {
			return i
		}
	}
	return in
}

// scalarText gives the text that a scalar stands for where a string is wanted; ok is false for null.
func scalarText(v any) (string, bool) {
	switch x := v.(type) {
	case string:
		return x, true
	case bool:
		return strconv.FormatBool(x), true
	case int64:
		return strconv.FormatInt(x, 10), true
	case uint64:
		return strconv.FormatUint(x, 10), true
	case float64:
		// 32 bits as in sigs.k8s.io/yaml, so that 1.13 stays 1.13.
		return strconv.FormatFloat(x, 'g', -1, 32), true
	}
	return "", false
}

// wholeNumber gives the whole number that JSON would decode into an int.
func wholeNumber(v any) (int, bool) {
	switch x := v.(type) {
	case int64:
		return int(x), true
	case float64:
		if x == math.Trunc(x) && -(1<<63) <= x && x < 1<<63 {
			return int(x), true
		}
	}
	return 0, false
}

// scalarName says what kind of scalar it is, for messages.
func scalarName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case int64, uint64:
		return "a number"
	case float64:
		return "a decimal number"
	}
	return "a string"
}

// isEncrypted tells whether a scalar is a SOPS-encrypted value.
func isEncrypted(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && strings.HasPrefix(n.Value, "ENC[AES256_GCM,") && strings.HasSuffix(n.Value, "]")
}
