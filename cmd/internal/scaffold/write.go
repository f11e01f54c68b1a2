package scaffold

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"ichor.maesh.dev/ichor/cmd/internal/editor"
)

// ExistsError says which files stand in the way; nothing was written.
type ExistsError struct{ Paths []string }

// Error lists them.
func (e *ExistsError) Error() string {
	return "nothing was written, for these files are there already and are never overwritten:\n  " + strings.Join(e.Paths, "\n  ")
}

// ignoreFile is the one file that may be there: lines are put after what it has.
const ignoreFile = ".gitignore"

// Conflicts tells which files are in the way below dir: those that are there with another content. A .gitignore is
// extended, so it never is.
func Conflicts(dir string, files []File) error {
	var found []string
	for _, f := range files {
		target := filepath.Join(dir, filepath.FromSlash(f.Path))
		have, err := os.ReadFile(target)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if blocked, ok := blockedBy(dir, f.Path); ok {
				found = append(found, blocked+" (a file where a folder has to be)")
			}
		case err != nil:
			found = append(found, fmt.Sprintf("%s (%s)", f.Path, reason(err)))
		case strings.HasPrefix(f.Path, editor.Folder+"/"):
			// Made by whatever Ichor was there before; ichor schema --write renews it.
		case f.Path != ignoreFile && !bytes.Equal(have, f.Data):
			found = append(found, f.Path)
		}
	}
	if len(found) > 0 {
		return &ExistsError{Paths: found}
	}
	return nil
}

// reason gives the bare cause of a file error: the path is said already.
func reason(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// blockedBy finds a parent of file that is there and is no folder.
func blockedBy(dir, file string) (string, bool) {
	for p := path.Dir(file); p != "."; p = path.Dir(p) {
		if info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(p))); err == nil && !info.IsDir() {
			return p, true
		}
	}
	return "", false
}

// Write writes files below dir, which is made where it is missing. Nothing is overwritten: it refuses with an ExistsError
// before it writes anything, and opens each file anew. Within dir no symlink leads out of it.
func Write(dir string, files []File) error {
	if err := Conflicts(dir, files); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open folder: %w", err)
	}
	defer root.Close()
	for _, f := range files {
		if err := writeOne(root, f); err != nil {
			return err
		}
	}
	return nil
}

func writeOne(root *os.Root, f File) error {
	name := filepath.FromSlash(f.Path)
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make folder for %s: %w", f.Path, err)
	}
	if f.Path == ignoreFile {
		return extend(root, name, f.Data)
	}
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		// With the same content, or Conflicts had refused.
		return nil
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.Path, err)
	}
	_, err = out.Write(f.Data)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("write %s: %w", f.Path, err)
	}
	return nil
}

// extend adds the lines that a file lacks.
func extend(root *os.Root, name string, data []byte) error {
	have, err := root.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	there := map[string]bool{}
	for line := range strings.Lines(string(have)) {
		there[strings.TrimSpace(line)] = true
	}
	var add strings.Builder
	if len(have) > 0 && !bytes.HasSuffix(have, []byte("\n")) {
		add.WriteByte('\n')
	}
	missing := false
	for line := range strings.Lines(string(data)) {
		if !there[strings.TrimSpace(line)] {
			add.WriteString(line)
			missing = true
		}
	}
	if !missing {
		return nil
	}
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = out.WriteString(add.String())
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
