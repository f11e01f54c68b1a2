package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// EnvTools names the folder with the programs of Kubernetes, in front of all other places.
const EnvTools = "ICHOR_LAB_KUBERNETES"

// Version of the programs that hack/tools.sh builds, whatever kubernetesVersion a repository names.
const Version = "v1.37.2"

// Tools are the real programs of Kubernetes that the lab runs.
type Tools struct {
	APIServer, ControllerManager, Scheduler string
	// Kubectl is for tests; the lab does not call it.
	Kubectl string
}

var toolNames = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}

// FindTools looks for the programs: in the folder that $ICHOR_LAB_KUBERNETES names, where "hack/tools.sh kubernetes"
// builds them, then on the PATH. All but kubectl must be there; the error names those that are not, and how to get them.
func FindTools() (Tools, error) {
	var found [4]string
	var missing []string
	for i, name := range toolNames {
		if found[i] = findTool(name); found[i] == "" && name != "kubectl" {
			missing = append(missing, name)
		}
	}
	t := Tools{APIServer: found[0], ControllerManager: found[1], Scheduler: found[2], Kubectl: found[3]}
	if len(missing) > 0 {
		return t, fmt.Errorf("find the programs of Kubernetes: %s missing; build them once with \"hack/tools.sh kubernetes\" in Ichor's source"+
			" (some minutes; Kubernetes %s), or put them on the PATH or into the folder that $%s names",
			strings.Join(missing, ", "), Version, EnvTools)
	}
	return t, nil
}

func findTool(name string) string {
	var dirs []string
	if dir := os.Getenv(EnvTools); dir != "" {
		dirs = append(dirs, dir)
	} else if cache := toolsCache(); cache != "" {
		dirs = append(dirs, filepath.Join(cache, "kubernetes"))
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			if abs, err := filepath.Abs(path); err == nil {
				return abs
			}
		}
	}
	if os.Getenv(EnvTools) != "" {
		return "" // a folder that was named is not quietly made up for
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// toolsCache is where hack/tools.sh builds.
func toolsCache() string {
	if dir := os.Getenv("ICHOR_TOOLS_DIR"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "ichor-tools")
}
