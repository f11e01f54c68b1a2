package secret_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	yaml3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/schemas/secret"
)

func TestASecretPrintsInNoForm(t *testing.T) {
	const canary = "canary-7c1f"
	s := secret.FromString(canary)
	type holder struct {
		S secret.Bytes
		P *secret.Bytes
		M map[string]secret.Bytes
	}
	h := holder{S: s, P: &s, M: map[string]secret.Bytes{"k": s}}

	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%p"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", h)
	}
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal, yaml3.Marshal} {
		b, err := marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "s", s, "h", h)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "s", s, "h", h)
	fmt.Fprint(&out, errors.Join(fmt.Errorf("wrapped: %v", s)))

	if got := out.String(); strings.Contains(got, canary) ||
		strings.Contains(got, fmt.Sprintf("%x", canary)) || strings.Contains(got, "99 97 110") {
		t.Fatalf("the secret was printed:\n%s", got)
	}
	if !bytes.Equal(s.Reveal(), []byte(canary)) {
		t.Fatal("Reveal must give the material")
	}
}
