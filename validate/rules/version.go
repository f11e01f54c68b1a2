package rules

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos110"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos111"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos112"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos113"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos114"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos16"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos17"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos18"
	"github.com/siderolabs/talos/pkg/machinery/compatibility/talos19"
)

// support is one row of the machinery library's compatibility table: the Kubernetes versions of a Talos minor, from
// oldest on, below newest. The library's own functions compare the same numbers, but take the API's types, which a
// check does not link (TestSupportIsTheLibrarys holds the two equal).
type support struct {
	talos          [2]uint64
	oldest, newest semver.Version
}

var supported = []support{
	{talos16.MajorMinor, talos16.MinimumKubernetesVersion, talos16.MaximumKubernetesVersion},
	{talos17.MajorMinor, talos17.MinimumKubernetesVersion, talos17.MaximumKubernetesVersion},
	{talos18.MajorMinor, talos18.MinimumKubernetesVersion, talos18.MaximumKubernetesVersion},
	{talos19.MajorMinor, talos19.MinimumKubernetesVersion, talos19.MaximumKubernetesVersion},
	{talos110.MajorMinor, talos110.MinimumKubernetesVersion, talos110.MaximumKubernetesVersion},
	{talos111.MajorMinor, talos111.MinimumKubernetesVersion, talos111.MaximumKubernetesVersion},
	{talos112.MajorMinor, talos112.MinimumKubernetesVersion, talos112.MaximumKubernetesVersion},
	{talos113.MajorMinor, talos113.MinimumKubernetesVersion, talos113.MaximumKubernetesVersion},
	{talos114.MajorMinor, talos114.MinimumKubernetesVersion, talos114.MaximumKubernetesVersion},
}

// supportOf finds the row of a Talos version; false where the library does not know that minor.
func supportOf(talos semver.Version) (support, bool) {
	for _, s := range supported {
		if s.talos == [2]uint64{talos.Major, talos.Minor} {
			return s, true
		}
	}
	return support{}, false
}

// newestKnown is the newest Talos minor of the library.
func newestKnown() [2]uint64 { return supported[len(supported)-1].talos }

// has tells whether a Kubernetes version is within the row; like the library it compares without pre-releases.
func (s support) has(kubernetes semver.Version) bool {
	v := core(kubernetes)
	return v.GE(core(s.oldest)) && v.LT(core(s.newest))
}

// window says the row's minors: "1.31 to 1.36".
func (s support) window() string {
	return fmt.Sprintf("%d.%d to %d.%d", s.oldest.Major, s.oldest.Minor, s.newest.Major, s.newest.Minor)
}

func core(v semver.Version) semver.Version {
	return semver.Version{Major: v.Major, Minor: v.Minor, Patch: v.Patch}
}

// parseVersion reads a full version, with v or without; false where it is none (rule schema speaks about it).
func parseVersion(s string) (semver.Version, bool) {
	v, err := semver.Parse(strings.TrimPrefix(s, "v"))
	return v, err == nil
}

// minorOf reads a minor such as v1.13, or the minor of a full version.
func minorOf(s string) ([2]uint64, bool) {
	parts := strings.SplitN(strings.TrimPrefix(s, "v"), ".", 3)
	if len(parts) < 2 {
		return [2]uint64{}, false
	}
	major, err1 := strconv.ParseUint(parts[0], 10, 32)
	minor, err2 := strconv.ParseUint(parts[1], 10, 32)
	return [2]uint64{major, minor}, err1 == nil && err2 == nil
}

func compareMinors(a, b [2]uint64) int {
	return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
}

func minorText(m [2]uint64) string { return fmt.Sprintf("%d.%d", m[0], m[1]) }
