package fleet

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	sigs "sigs.k8s.io/yaml"
)

// oracle is a type with a field of each sort that our kinds have.
type oracle struct {
	S string            `json:"s,omitempty"`
	B bool              `json:"b,omitempty"`
	I int               `json:"i,omitempty"`
	M map[string]string `json:"m,omitempty"`
	A map[string]any    `json:"a,omitempty"`
	L []string          `json:"l,omitempty"`
	P *bool             `json:"p,omitempty"`
}

// scalars are texts that YAML 1.1, YAML 1.2 and JSON read differently.
var scalars = []string{
	"yes", "Yes", "YES", "y", "Y", "on", "ON", "off", "n", "No", "true", "True", "tRUE", "~", "null", "Null", "",
	"1", "-1", "+1", "010", "0o10", "0x10", "0X1F", "0b11", "-0b11", "0b+0", "0b-11", "0b", "-0b+1", "+0b1", "0b+2", "0b_1", "0x+1", "0o+1", "-0x1", "1_000", "1e3", "1E3", "1.0", "1.10", "1.13",
	".5", "5.", "-.5", ".", "..", "1.2.3", "1:30", "12:30:45", "2001-01-01", "2001-01-01T00:00:00Z", "2001-1", "9223372036854775807",
	"9223372036854775808", "18446744073709551616", "1e400", ".inf", "-.Inf", ".nan", "abc", "v1.13", "'1'", `"yes"`, "'~'", "!!str 1",
	"!!str yes", "!!int '1'", "!!float 1", "!!bool 'yes'", "0.1", "123456789.123", "25%", "30s", "=", "<", "1,000", "0", "-0", "00", "08",
	"{}", "[]", "[a]", "{a: b}", "0x", "_1", "1_", "-", "+", "+.5", "1e", "|\n  x\n", ">\n  x\n",
}

func TestScalarsReadAsKubernetesReadsThem(t *testing.T) {
	for _, field := range []string{"s: %", "b: %", "i: %", "m: {k: %}", "a: {k: %}", "l: [%]", "p: %", "m: {%: v}"} {
		for _, s := range scalars {
			checkScalar(t, field, s)
		}
	}
}

func FuzzScalar(f *testing.F) {
	for i, s := range scalars {
		f.Add([]string{"s: %", "b: %", "i: %", "p: %"}[i%4], s)
	}
	f.Fuzz(func(t *testing.T, field, s string) {
		if strings.Contains(s, "!") {
			return // the parser here does not tell the tag ! from none
		}
		switch field {
		case "s: %", "b: %", "i: %", "p: %":
			checkScalar(t, field, s)
		}
	})
}

// checkScalar reads one value with the decoder here and with sigs.k8s.io/yaml.
func checkScalar(t *testing.T, field, s string) {
	t.Helper()
	text := ""
	for _, r := range field {
		if r == '%' {
			text += s
		} else {
			text += string(r)
		}
	}
	nodes, err := decodeNodes([]byte(text))
	if err != nil || len(nodes) != 1 {
		return
	}
	var want oracle
	wantErr := sigs.UnmarshalStrict([]byte(text), &want)

	d := &docDecoder{idx: newFieldIndex(Position{}), bad: map[string]bool{}}
	got := reflect.New(reflect.TypeFor[oracle]())
	d.value(nodes[0], got.Elem(), root, nil)
	switch {
	case wantErr != nil && len(d.problems) > 0:
	case wantErr != nil:
		t.Errorf("%q: accepted as %+v; sigs.k8s.io/yaml says %v", text, got.Elem().Interface(), wantErr)
	case len(d.problems) > 0:
		if !stricter(want) {
			t.Errorf("%q: refused (%s); sigs.k8s.io/yaml reads %+v", text, d.problems[0].Message, want)
		}
	case got.Elem().Field(4).Len() > 0 && len(s) > 15:
		// encoding/json reads a large whole number of a free field as a float; here it stays whole.
	default:
		a, errA := json.Marshal(got.Interface())
		b, errB := json.Marshal(want)
		if string(a) != string(b) || (errA == nil) != (errB == nil) {
			t.Errorf("%q: read as %s; sigs.k8s.io/yaml reads %s", text, a, b)
		}
	}
}

// stricter tells the cases in which we refuse on purpose what sigs.k8s.io/yaml takes: an empty item or value.
func stricter(o oracle) bool {
	for _, v := range o.M {
		if v == "" {
			return true
		}
	}
	return len(o.L) == 1 && o.L[0] == ""
}
