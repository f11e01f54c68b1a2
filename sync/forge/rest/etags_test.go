package rest

import (
	"fmt"
	"testing"
)

// TestKeptAnswersAreBounded: by number and by size, the newest stay.
func TestKeptAnswersAreBounded(t *testing.T) {
	e := newETags(nil)
	size := func() (n int) {
		for _, el := range e.kept {
			n += len(el.Value.(*keptAnswer).body)
		}
		return n
	}
	for i := range 3 * keptAnswers {
		e.put(&keptAnswer{key: fmt.Sprint("small", i), body: []byte("x")})
	}
	if len(e.kept) != keptAnswers || e.order.Len() != keptAnswers || e.size != size() {
		t.Errorf("%d kept, %d in order, size %d of %d", len(e.kept), e.order.Len(), e.size, size())
	}
	for i := range 50 {
		e.put(&keptAnswer{key: fmt.Sprint("large", i%40), body: make([]byte, keptBytes)})
	}
	if size() > keptTotal || e.size != size() || e.order.Len() != len(e.kept) {
		t.Errorf("%d bytes are kept, counted %d", size(), e.size)
	}
	if e.get("large9") == nil || e.get("large10") != nil {
		t.Error("not the newest are kept")
	}
}
