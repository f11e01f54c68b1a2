package fleet

import (
	"errors"
	"path"
	"strings"
)

// Errors of ResolvePath.
var (
	errPathEmpty    = errors.New("the path is empty")
	errPathAbsolute = errors.New("the path is absolute; it is relative to the repository root, or to the manifest's folder when it begins with ./ or ../")
	errPathLeaves   = errors.New("the path leaves the repository")
	errPathName     = errors.New("the path holds a backslash or a control character")
)

// ResolvePath gives the path from the repository root of a file that a manifest names: relative to the root, or,
// beginning with ./ or ../, to the manifest's folder. It may not leave the repository. It looks at names alone;
// symlinks are found where the file is read.
func ResolvePath(manifestFile, ref string) (string, error) {
	switch {
	case ref == "":
		return "", errPathEmpty
	case strings.HasPrefix(ref, "/"):
		return "", errPathAbsolute
	case badName(ref):
		return "", errPathName
	}
	full := ref
	if ref == "." || ref == ".." || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../") {
		full = path.Dir(manifestFile) + "/" + ref
	}
	full = path.Clean(full)
	if full == ".." || strings.HasPrefix(full, "../") {
		return "", errPathLeaves
	}
	return full, nil
}

// badName tells whether a path holds what no path of a repository should: backslashes (a separator elsewhere) and
// control characters.
func badName(name string) bool {
	return strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' })
}
