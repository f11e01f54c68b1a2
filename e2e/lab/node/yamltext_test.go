package node

import "testing"

// TestYAMLTexts: what yaml v4.0.0-rc.3 (1.12) and -rc.4 (1.13) say of the same input, as they were
// run, and the one text of 1.14.0-rc.1 that was seen.
func TestYAMLTexts(t *testing.T) {
	for _, c := range []struct {
		in    string
		texts map[int]string
	}{
		{"{\n", map[int]string{
			12: "line 1: did not find expected node content",
			13: "while parsing a flow node at line 1: did not find expected node content",
			14: "L2.C1",
		}},
		{"}\n", map[int]string{
			12: "did not find expected node content",
			13: "while parsing a block node at <unknown position>: did not find expected node content",
		}},
		{"{{{ not yaml\n", map[int]string{
			12: "line 1: did not find expected ',' or '}'",
			13: "while parsing a flow mapping at <unknown position>: line 1: did not find expected ',' or '}'",
		}},
		{"a: b\nc: ]\n", map[int]string{
			12: "line 1: did not find expected node content",
			13: "while parsing a block node at line 1, column 4: did not find expected node content",
		}},
		{"x: y\na: b: c\n", map[int]string{
			12: "line 2: mapping values are not allowed in this context",
			13: "line 2, column 5: mapping values are not allowed in this context",
		}},
		{"a: b: c\n", map[int]string{
			12: "mapping values are not allowed in this context",
			13: "line 1, column 5: mapping values are not allowed in this context",
		}},
		{"a: b\na: *x\n", map[int]string{
			12: "unknown anchor 'x' referenced",
			13: "line 2, column 5: unknown anchor 'x' referenced",
		}},
		{"a: \"b\n", map[int]string{
			12: "line 2: found unexpected end of stream",
			13: "while scanning a quoted scalar at line 1, column 4: line 2: found unexpected end of stream",
		}},
	} {
		for minor, want := range c.texts {
			want = "decode error: yaml: " + want
			if minor == 14 {
				want = "decode error: go-yaml load error in parser (while parsing a flow node) at L2.C1: did not find expected node content"
			}
			if _, err := releases[minor].parse([]byte(c.in)); err == nil || err.Error() != want {
				t.Errorf("1.%d on %q says %v, want %q", minor, c.in, err, want)
			}
		}
	}
}
