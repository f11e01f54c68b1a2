package forge

import (
	"bufio"
	"bytes"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
)

// Bounds of a recursive listing (GitHub's documentation of the Git trees API): 100,000 entries and 7 MB, then it is cut.
const (
	maxTreeEntries = 100_000
	maxTreeBytes   = 7 << 20
)

// getTree lists a tree, of a commit too; recursive with any value of that argument. Sizes are those of files.
func getTree(c *call, _ http.Header) (int, any, error) {
	sha := c.f.resolveTree(c, c.args["ref"])
	if sha == "" {
		return 0, nil, notFound()
	}
	args := []string{"ls-tree", "-z", "--long", "-t"}
	if c.r.URL.Query().Has("recursive") {
		args = append(args, "-r")
	}
	cmd := exec.CommandContext(c.r.Context(), "git", append(args, sha)...)
	cmd.Dir, cmd.Env = c.f.gitDir(c.repo), gitEnv()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	u := c.f.repoURL(c.repo)
	// An entry takes its path and about 250 bytes of JSON.
	list, size, cut := []obj{}, 0, false
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	lines.Split(untilNUL)
	for lines.Scan() {
		meta, path, _ := strings.Cut(lines.Text(), "\t")
		f := strings.Fields(meta)
		if len(f) != 4 {
			continue
		}
		e := obj{"path": path, "mode": f[0], "type": f[1], "sha": f[2], "url": u + "/git/" + f[1] + "s/" + f[2]}
		if n, err := strconv.Atoi(f[3]); err == nil {
			e["size"] = n
		}
		if size += len(path) + 250; len(list) == maxTreeEntries || size > maxTreeBytes {
			cut = true
			break
		}
		list = append(list, e)
	}
	_ = cmd.Process.Kill() // where it was cut it would go on for long
	_ = cmd.Wait()
	return http.StatusOK, obj{"sha": sha, "url": u + "/git/trees/" + sha, "tree": list, "truncated": cut}, nil
}

func untilNUL(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// resolveTree gives the hash of a tree or of a commit's or branch's tree, "" where there is none.
func (f *Forge) resolveTree(c *call, ref string) string {
	if strings.HasPrefix(ref, "-") {
		return ""
	}
	out, err := f.git(c.repo).run(c.r.Context(), "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{tree}")
	if err != nil {
		return ""
	}
	return out
}
