package act

import (
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

func TestWhatIsAppliedIsRecordedUnderTheNewestIdentity(t *testing.T) {
	for _, tc := range []struct {
		name string
		d    plan.Desired
		want string
	}{
		{"rotated", plan.Desired{SecretsFingerprint: "old", RenewedSecrets: "new", EncryptedFingerprint: "old", RenewedEncrypted: "new"}, "new"},
		{"one identity", plan.Desired{SecretsFingerprint: "one", EncryptedFingerprint: "one"}, "one"},
	} {
		c := &state.ClusterInventory{SecretsFingerprint: "old", EncryptedFingerprint: "old"}
		if err := recordOne(c, &tc.d, plan.Action{Kind: plan.RecordApplied, Commit: "c1"}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if c.SecretsFingerprint != tc.want || c.EncryptedFingerprint != tc.want || c.AppliedCommit != "c1" {
			t.Errorf("%s: %+v", tc.name, c)
		}
	}
}
