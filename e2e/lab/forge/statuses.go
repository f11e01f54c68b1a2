package forge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Status is a commit status as it was taken.
type Status struct {
	ID          int64     `json:"id"`
	SHA         string    `json:"sha"`
	State       string    `json:"state"`
	Context     string    `json:"context"`
	Description string    `json:"description"`
	TargetURL   string    `json:"targetURL"`
	Creator     string    `json:"creator"`
	Created     time.Time `json:"created"`
	// Repository that it was posted to; two repositories never share statuses.
	Repository int64 `json:"repository"`
}

// Limits of GitHub's statuses.
const (
	maxDescription    = 140
	maxContext        = 255
	maxPerContext     = 1000
	maxTargetURL      = 2048
	msgTooMany        = "This SHA and context has reached the maximum number of statuses."
	msgNoCommitForSHA = "No commit found for SHA: "
)

// statusStore keeps statuses in a file that is only appended to, each line synced before the answer is given.
type statusStore struct {
	mu    sync.Mutex
	file  *os.File
	last  int64
	bySHA map[string][]Status
}

func openStatuses(path string) (*statusStore, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read statuses: %w", err)
	}
	s := &statusStore{bySHA: map[string][]Status{}}
	whole := bytes.LastIndexByte(data, '\n') + 1
	sc := bufio.NewScanner(bytes.NewReader(data[:whole]))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var st Status
		if err := json.Unmarshal(sc.Bytes(), &st); err != nil {
			return nil, fmt.Errorf("read statuses %s: %w", path, err)
		}
		s.keep(st)
	}
	if s.file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, fmt.Errorf("open statuses: %w", err)
	}
	// a line that a kill cut short was never answered: drop it
	if err := s.file.Truncate(int64(whole)); err != nil {
		return nil, errors.Join(fmt.Errorf("cut statuses to whole lines: %w", err), s.file.Close())
	}
	return s, nil
}

func (s *statusStore) keep(st Status) {
	key := statusKey(st.Repository, st.SHA)
	s.bySHA[key] = append(s.bySHA[key], st)
	s.last = max(s.last, st.ID)
}

func statusKey(repo int64, sha string) string { return fmt.Sprintf("%d/%s", repo, sha) }

// add stores a status that was validated; *Error 422 when the cap of its context is reached.
func (s *statusStore) add(st Status) (Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, old := range s.bySHA[statusKey(st.Repository, st.SHA)] {
		if strings.EqualFold(old.Context, st.Context) {
			n++
		}
	}
	if n >= maxPerContext {
		return Status{}, custom("Status", "", msgTooMany)
	}
	st.ID = s.last + 1
	line, err := json.Marshal(st)
	if err != nil {
		return Status{}, fmt.Errorf("store status: %w", err)
	}
	if _, err := s.file.Write(append(line, '\n')); err != nil {
		return Status{}, fmt.Errorf("store status: %w", err)
	}
	if err := s.file.Sync(); err != nil {
		return Status{}, fmt.Errorf("store status: %w", err)
	}
	s.keep(st)
	return st, nil
}

// list gives the statuses of a commit, oldest first.
func (s *statusStore) list(repo int64, sha string) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Status(nil), s.bySHA[statusKey(repo, sha)]...)
}

// latest gives the newest status of each context (letter case aside), in the order in which they were posted.
func (s *statusStore) latest(repo int64, sha string) []Status {
	all := s.list(repo, sha)
	var res []Status
	seen := map[string]bool{}
	for i := len(all) - 1; i >= 0; i-- {
		if key := strings.ToLower(all[i].Context); !seen[key] {
			seen[key] = true
			res = append([]Status{all[i]}, res...)
		}
	}
	return res
}

func (s *statusStore) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file.Close()
}

// combine gives GitHub's state of all: failure when any is failure or error, pending when none is there or any
// is pending.
func combine(all []Status) string {
	if len(all) == 0 {
		return "pending"
	}
	state := "success"
	for _, s := range all {
		switch s.State {
		case "failure", "error":
			return "failure"
		case "pending":
			state = "pending"
		}
	}
	return state
}

// validate is what GitHub checks before it takes a status.
func (s *Status) validate() error {
	if s.Context == "" {
		s.Context = "default"
	}
	switch s.State {
	case "error", "failure", "pending", "success":
	default:
		return custom("Status", "state", "state is not included in the list")
	}
	switch {
	case utf8.RuneCountInString(s.Description) > maxDescription:
		return custom("Status", "description", fmt.Sprintf("description is too long (maximum is %d characters)", maxDescription))
	case utf8.RuneCountInString(s.Context) > maxContext:
		return custom("Status", "context", fmt.Sprintf("context is too long (maximum is %d characters)", maxContext))
	case len(s.TargetURL) > maxTargetURL:
		return custom("Status", "target_url", fmt.Sprintf("target_url is too long (maximum is %d characters)", maxTargetURL))
	case s.TargetURL != "" && !strings.HasPrefix(s.TargetURL, "http://") && !strings.HasPrefix(s.TargetURL, "https://"):
		return custom("Status", "target_url", "target_url must use http(s) scheme")
	}
	return nil
}

// Statuses gives every status of a commit of the main repository, oldest first.
func (f *Forge) Statuses(sha string) []Status { return f.statuses.list(f.main.id(), sha) }

// LatestStatuses gives the newest status of each context of a commit of the main repository.
func (f *Forge) LatestStatuses(sha string) []Status { return f.statuses.latest(f.main.id(), sha) }
