package mask

import (
	"strconv"
	"strings"
)

// Key appends a map key to a path: dotted, keys that hold a dot, a bracket or a quote (and empty ones) in
// brackets, as in machine.sysctls["net.core.somaxconn"].
func Key(parent, key string) string {
	if key == "" || strings.ContainsAny(key, `.[]"`) {
		return parent + "[" + strconv.Quote(key) + "]"
	}
	if parent == "" {
		return key
	}
	return parent + "." + key
}

// Index appends a list index to a path: machine.certSANs[1].
func Index(parent string, i int) string { return parent + "[" + strconv.Itoa(i) + "]" }

// Step is one step of a path: a map key, or a list index where Key is "" and List is true.
type Step struct {
	Key   string
	Index int
	List  bool
}

// Steps takes a path apart; it is the inverse of Key and Index. A path that neither made gives its longest
// readable prefix.
func Steps(path string) []Step {
	var out []Step
	for path != "" {
		var s Step
		var ok bool
		if path[0] == '[' {
			s, path, ok = bracketStep(path)
			if !ok {
				return out
			}
		} else {
			path = strings.TrimPrefix(path, ".")
			n := strings.IndexAny(path, ".[")
			if n < 0 {
				n = len(path)
			}
			s, path = Step{Key: path[:n]}, path[n:]
		}
		out = append(out, s)
	}
	return out
}

// bracketStep reads [3] or ["a.b"] from the beginning of path.
func bracketStep(path string) (Step, string, bool) {
	if strings.HasPrefix(path, `["`) {
		q, err := strconv.QuotedPrefix(path[1:])
		if err != nil || !strings.HasPrefix(path[1+len(q):], "]") {
			return Step{}, "", false
		}
		key, err := strconv.Unquote(q)
		return Step{Key: key}, path[len(q)+2:], err == nil
	}
	end := strings.IndexByte(path, ']')
	if end < 0 {
		return Step{}, "", false
	}
	i, err := strconv.Atoi(path[1:end])
	return Step{Index: i, List: true}, path[end+1:], err == nil
}
