package celpolicy

import "testing"

// FuzzExpression: whatever a stranger writes compiles or not, is evaluated or not, and never panics.
func FuzzExpression(f *testing.F) {
	for _, s := range []string{
		`machine.hostname != ""`, `documents.exists(d, d.?kind.orValue("") == "x")`, `config.machine.sysctls["a"] == "b"`, `1/0 == 1`,
		`[1,2].all(a, a > 0)`, `machine.name.matches("(a+)+$")`, `{}.a`, `"\u0000"`, `dyn(documents) == dyn(config)`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Compile(text)
		if err != nil {
			return
		}
		if _, err := e.Eval(t.Context(), facts()); err == nil && e.Spent() > maxCost {
			t.Errorf("%q cost %d", text, e.Spent())
		}
	})
}
