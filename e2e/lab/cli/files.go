package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// variable of the env file.
type variable struct{ name, value string }

// envFile is a file that a shell reads in with ". FILE".
func envFile(vars []variable) []byte {
	var b strings.Builder
	b.WriteString("# Made by ichor-lab. Read it in with: . <this file>\n")
	for _, v := range vars {
		if v.value == "" {
			continue
		}
		fmt.Fprintf(&b, "export %s=%s\n", v.name, quote(v.value))
	}
	return []byte(b.String())
}

// quote for a POSIX shell.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+,=-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// writeFile by temp, fsync, rename.
func writeFile(path string, data []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Chmod(mode)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
