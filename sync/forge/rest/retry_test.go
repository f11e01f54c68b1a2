package rest

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestRetryAtIsNeverFarAway: a server (or a proxy before it) with a wrong clock must not silence Ichor for long.
func TestRetryAtIsNeverFarAway(t *testing.T) {
	far := time.Now().Add(10 * 365 * 24 * time.Hour)
	for name, h := range map[string]http.Header{
		"seconds": {"Retry-After": {"99999999"}},
		"a date":  {"Retry-After": {far.UTC().Format(http.TimeFormat)}},
		"a reset": {"X-Ratelimit-Reset": {fmt.Sprint(far.Unix())}, "X-Ratelimit-Remaining": {"0"}},
		"GitLab":  {"Ratelimit-Reset": {fmt.Sprint(far.Unix())}, "Ratelimit-Remaining": {"0"}},
	} {
		wait := time.Until(RetryAt(&http.Response{Header: h}))
		if wait > maxWait*time.Second || wait < maxWait*time.Second-time.Minute {
			t.Errorf("%s: it waits %s", name, wait)
		}
	}
}
