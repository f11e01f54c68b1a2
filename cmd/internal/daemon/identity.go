package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/sync/forge"
)

// repoIdentity keeps watch over who the repository is. The forge's number for it survives renames and moves; one that was
// deleted and made anew, or that got the name of another, has another number. That is no push to follow: nothing is read of
// it and nothing is written to it (git.Options.Guard, before) until a person has looked. What was taken over before stays in
// force. The number is kept in the state folder, so that a restart does not forget it.
type repoIdentity struct {
	ask  func(ctx context.Context) (forge.Repository, error)
	name string
	file string
	log  *slog.Logger
	now  func() time.Time

	mu sync.Mutex
	// known is the number it had from the beginning, found another one that is there now; "" none.
	known, found string
	// until what was learnt last holds.
	until time.Time
	// silent: the forge did not answer; called is the name that it gave last.
	silent bool
	called string
}

// What the forge says holds for so long; and so long it is not asked again when it did not answer.
const (
	identityHolds  = 10 * time.Second
	identityPause  = time.Minute
	identityAnswer = 10 * time.Second
)

// identityFile is what the state folder keeps.
type identityFile struct {
	Repository string `json:"repository"`
	ID         string `json:"id"`
	// Found is the number of another one that is in its place.
	Found string `json:"found,omitempty"`
}

// openIdentity reads what the state folder knows; nil where there is no forge. Another repository in the configuration is
// another beginning.
func openIdentity(c config.Config, f forge.Forge, log *slog.Logger, now func() time.Time) (*repoIdentity, error) {
	if c.Forge.Kind == "none" {
		return nil, nil //nolint:nilnil // no forge, no identity: all methods take nil
	}
	i := &repoIdentity{
		ask: f.Repository, file: filepath.Join(c.StateDir, "repository.json"), log: log, now: now, called: c.Forge.Repository,
		name: strings.ToLower(strings.Join([]string{c.Forge.Kind, strings.TrimRight(c.Forge.URL, "/"), c.Forge.Repository}, " ")),
	}
	data, err := os.ReadFile(i.file)
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read who the repository is: %w", err)
	}
	var kept identityFile
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, fmt.Errorf("read who the repository is: %s is no JSON: delete it if the repository is the right one", i.file)
	}
	if kept.Repository == i.name {
		i.known, i.found = kept.ID, kept.Found
	}
	return i, nil
}

// id gives the repository's number, "" unknown.
func (i *repoIdentity) id() string {
	if i == nil {
		return ""
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.known
}

// guard is check, nil where there is nothing to check.
func (i *repoIdentity) guard() func(context.Context) error {
	if i == nil {
		return nil
	}
	return i.check
}

// check asks the forge, unless it was asked just now. Its error says that the repository is another one. A forge that does
// not answer changes nothing: what was known of it stands.
func (i *repoIdentity) check(ctx context.Context) error {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if now := i.now(); !now.Before(i.until) {
		i.look(ctx, now)
	}
	if i.found == "" {
		return nil
	}
	return fmt.Errorf("another repository is in its place: the forge says that %s has the number %s, and it was %s; nothing is read from it or "+
		"written to it", i.called, i.found, i.known)
}

func (i *repoIdentity) look(ctx context.Context, now time.Time) {
	limited, cancel := context.WithTimeout(ctx, identityAnswer)
	defer cancel()
	r, err := i.ask(limited)
	if err != nil {
		if ctx.Err() != nil {
			return // nobody waits for it any more: the next one asks
		}
		if !i.silent {
			i.log.Warn("ask the forge for the repository", "error", err)
		}
		i.silent, i.until = true, now.Add(identityPause)
		return
	}
	i.silent, i.until = false, now.Add(identityHolds)
	switch {
	case r.ID == "":
		return
	case i.known == "":
		i.keep(r.ID, "")
	case r.ID != i.known:
		if i.found != r.ID {
			i.log.Error("another repository is in the place of the one that was there; nothing is read or written", "repository", r.FullName,
				"id", r.ID, "was", i.known)
			i.keep(i.known, r.ID)
		}
		return
	case i.found != "":
		i.log.Info("the repository is back", "repository", r.FullName, "id", r.ID)
		i.keep(i.known, "")
	}
	if r.FullName != "" && !strings.EqualFold(r.FullName, i.called) {
		i.log.Warn("the repository has another name now; set it in the configuration (repo, forge.repository)", "name", r.FullName, "was", i.called)
		i.called = r.FullName
	}
}

// keep writes the numbers down. Where that fails, this process still knows them.
func (i *repoIdentity) keep(known, found string) {
	i.known, i.found = known, found
	data, err := json.Marshal(identityFile{i.name, known, found})
	if err == nil {
		tmp := i.file + ".new"
		if err = os.WriteFile(tmp, append(data, '\n'), 0o600); err == nil {
			err = os.Rename(tmp, i.file)
		}
	}
	if err != nil {
		i.log.Error("keep who the repository is; a restart will not know it", "error", err)
	}
}
