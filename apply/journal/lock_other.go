//go:build !unix

package journal

import (
	"errors"
	"os"
)

// lockFileNow: the daemon runs where files can be locked so that the lock ends with the process; checks run anywhere.
func lockFileNow(*os.File) error {
	return errors.New("lock the state folder: this system is not supported for ichor run")
}
