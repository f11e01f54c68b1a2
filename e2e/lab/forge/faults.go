package forge

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FaultKind is a way to go wrong.
type FaultKind string

// Kinds of faults.
const (
	// FaultStatus answers with Fault.Status (500, 502, 404 …) and does nothing.
	FaultStatus FaultKind = "status"
	// FaultPrimaryLimit answers 403 with no requests remaining until RetryAfter from now.
	FaultPrimaryLimit FaultKind = "primary-limit"
	// FaultSecondaryLimit answers 403 of the secondary limit with Retry-After.
	FaultSecondaryLimit FaultKind = "secondary-limit"
	// FaultTooMany answers 429 with Retry-After.
	FaultTooMany FaultKind = "too-many"
	// FaultLostReply does all that was asked, then never answers: it waits for Delay, or for the client to give
	// up where that is zero, and cuts the connection.
	FaultLostReply FaultKind = "lost-reply"
	// FaultSlow answers after Delay.
	FaultSlow FaultKind = "slow"
	// FaultCut closes the connection before anything is done.
	FaultCut FaultKind = "cut"
	// FaultHang does nothing and never answers.
	FaultHang FaultKind = "hang"
)

// Fault is put in front of the forge by Forge.Fault.
type Fault struct {
	// Endpoint as in Request.Endpoint, with * for any run of characters: "statuses.create", "git.*", "*".
	Endpoint string `json:"endpoint"`
	// Kind of fault.
	Kind FaultKind `json:"kind"`
	// Count of requests that are hit. 0: all, until ClearFaults.
	Count int `json:"count"`
	// Skip lets this many requests through first.
	Skip int `json:"skip,omitempty"`
	// Status for FaultStatus. Default: 500.
	Status int `json:"status,omitempty"`
	// RetryAfter for the limits. Default: 1 minute; whole seconds.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
	// Delay for FaultSlow and FaultLostReply.
	Delay time.Duration `json:"delay,omitempty"`
}

// endpoints are all that a request may be counted as.
func endpoints() []string {
	list := []string{
		"rate_limit.get", "user.get", "api.unknown", "git.info-refs", "git.upload-pack", "git.receive-pack",
		"web.unknown", "web.home", "web.repository", "web.blob", "web.raw", "web.tree", "web.commit", "web.pull",
	}
	for _, r := range routes {
		list = append(list, r.endpoint)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Fault adds a fault. Faults are tried in the order in which they were added; one request meets at most one.
func (f *Forge) Fault(x Fault) error {
	if _, err := path.Match(x.Endpoint, ""); err != nil || x.Endpoint == "" {
		return fmt.Errorf("add fault for endpoint %q: not a pattern; want an endpoint such as statuses.create, git.* or *", x.Endpoint)
	}
	if !slices.ContainsFunc(endpoints(), func(name string) bool { ok, _ := path.Match(x.Endpoint, name); return ok }) {
		return fmt.Errorf("add fault for endpoint %q: the forge has none of that name; there are %s", x.Endpoint, strings.Join(endpoints(), ", "))
	}
	switch x.Kind {
	case FaultStatus, FaultPrimaryLimit, FaultSecondaryLimit, FaultTooMany, FaultLostReply, FaultSlow, FaultCut, FaultHang:
	default:
		return fmt.Errorf("add fault %q: not a kind of fault; want status, primary-limit, secondary-limit, too-many, lost-reply, slow, cut or hang", x.Kind)
	}
	if x.Status == 0 {
		x.Status = http.StatusInternalServerError
	}
	if x.RetryAfter == 0 {
		x.RetryAfter = time.Minute
	}
	if x.Count == 0 {
		x.Count = -1
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &x)
	return nil
}

// ClearFaults takes all faults away; what hangs already goes on to hang.
func (f *Forge) ClearFaults() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// takeFault uses up the fault that a request meets, nil where there is none.
func (f *Forge) takeFault(endpoint string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.faults {
		if ok, _ := path.Match(x.Endpoint, endpoint); !ok || x.Count == 0 {
			continue
		}
		if x.Skip > 0 {
			x.Skip--
			continue
		}
		if x.Count > 0 {
			x.Count--
		}
		hit := *x
		return &hit
	}
	return nil
}

// answer plays the fault; serve does what was really asked.
func (x *Fault) answer(f *Forge, w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter)) {
	after := strconv.Itoa(int((x.RetryAfter + time.Second - 1) / time.Second))
	switch x.Kind {
	case FaultStatus:
		writeError(w, &Error{Status: x.Status, Message: http.StatusText(x.Status)})
	case FaultTooMany:
		w.Header().Set("Retry-After", after)
		writeError(w, &Error{Status: http.StatusTooManyRequests, Message: "Too many requests", Doc: docSecondary})
	case FaultSecondaryLimit:
		w.Header().Set("Retry-After", after)
		writeError(w, secondary())
	case FaultPrimaryLimit:
		full := window{used: 5000, reset: f.now().Add(x.RetryAfter)}
		full.headers(5000, w.Header())
		writeError(w, &Error{Status: http.StatusForbidden, Message: "API rate limit exceeded for user ID 1.", Doc: docPrimary})
	case FaultLostReply:
		serve(&discard{header: http.Header{}})
		x.wait(r)
		panic(http.ErrAbortHandler)
	case FaultSlow:
		x.wait(r)
		serve(w)
	case FaultHang:
		drain(r)
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case FaultCut:
		panic(http.ErrAbortHandler)
	}
}

// wait for the delay, or, without one, for the client to leave.
func (x *Fault) wait(r *http.Request) {
	var after <-chan time.Time
	if x.Delay > 0 {
		t := time.NewTimer(x.Delay)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-after:
	case <-r.Context().Done():
	}
}

// discard takes an answer that nobody gets.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
