package v1alpha1_test

import (
	"reflect"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func TestNormalizeEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1":           "10.0.0.1:50000",
		"10.0.0.1:50000":     "10.0.0.1:50000",
		"10.0.0.1:1":         "10.0.0.1:1",
		"fd00::1":            "[fd00::1]:50000",
		"[fd00::1]":          "[fd00::1]:50000",
		"[fd00:0::1]:50000":  "[fd00::1]:50000",
		"::ffff:10.0.0.1":    "10.0.0.1:50000",
		"[::ffff:a00:1]:443": "10.0.0.1:443",
		"10.0.0.1:0":         "",
		"10.0.0.1:65536":     "",
		"10.0.0.01":          "",
		"10.0.0.1:":          "",
		"[10.0.0.1]":         "",
		"[10.0.0.1]:50000":   "",
		"fd00::1%eth0":       "",
		"[fd00::1%eth0]:1":   "",
		"[fd00::1":           "",
		"cp1":                "",
		" 10.0.0.1":          "",
		"0.0.0.0":            "",
		"[::]:50000":         "",
		"::ffff:0.0.0.0":     "",
		"224.0.0.1":          "",
		"ff02::1":            "",
		"255.255.255.255:1":  "",
		"":                   "",
	} {
		got, err := v1alpha1.NormalizeEndpoint(in)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: %v, %v; want %q", in, got, err, want)
		}
	}
}

func TestIntOrPercent(t *testing.T) {
	for in, want := range map[v1alpha1.IntOrPercent][3]int{ // of 1, 10 and 99
		"": {1, 1, 1}, "1": {1, 1, 1}, "3": {3, 3, 3}, "25%": {1, 2, 24}, "100%": {1, 10, 99}, "1%": {1, 1, 1},
	} {
		if got := [3]int{in.Of(1), in.Of(10), in.Of(99)}; got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
		if valid := in != ""; in.Valid() != valid {
			t.Errorf("%q: valid is %v", in, !valid)
		}
	}
	for _, in := range []v1alpha1.IntOrPercent{"0", "0%", "-1", "+1", "101%", "1.5", "%", "x", "1 %", "9999999999"} {
		if in.Valid() || in.Of(10) != 1 {
			t.Errorf("%q passes", in)
		}
	}
}

func TestDuration(t *testing.T) {
	for in, want := range map[v1alpha1.Duration]time.Duration{"": time.Hour, "1s": time.Second, "1h30m": 90 * time.Minute, "0s": time.Hour, "-1s": time.Hour, "x": time.Hour} {
		if got := in.Or(time.Hour); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func TestDefaultedFillsInWhatIsDocumented(t *testing.T) {
	no := false
	var empty v1alpha1.TalosClusterSpec
	empty.TalosVersion = "1.13.5"
	got := empty.Defaulted()
	if got.Contract != "v1.13" || got.Endpoint.Port != 6443 || !reflect.DeepEqual(got.Network.PodSubnets, []string{"10.244.0.0/16"}) ||
		!reflect.DeepEqual(got.Network.ServiceSubnets, []string{"10.96.0.0/12"}) || got.Network.DNSDomain != "cluster.local" ||
		got.Network.CNI.Preset != "flannel" || got.Network.CNI.Tunnel != "" || !*got.Network.KubeProxy {
		t.Errorf("%+v", got)
	}
	if r := got.Rollout; r.Mode != "apply" || r.WorkerMaxUnavailable != "1" || r.Settle.Or(0) != 30*time.Second || !*r.Drain.Enabled ||
		r.Drain.Timeout.Or(0) != 5*time.Minute || r.Reboot != "auto" || !*r.Try || r.OnDrift != "correct" {
		t.Errorf("%+v", r)
	}
	if r := got.Reachability; r.Interval.Or(0) != 2*time.Minute || r.Grace.Or(0) != time.Minute {
		t.Errorf("%+v", r)
	}
	if empty.Network.KubeProxy != nil || empty.Rollout.Try != nil {
		t.Error("the original was changed")
	}
	given := got
	given.Contract, given.Network.KubeProxy, given.Rollout.Try, given.Rollout.Settle = "v1.12", &no, &no, "1s"
	if again := given.Defaulted(); !reflect.DeepEqual(again, given) {
		t.Errorf("what is given was changed: %+v", again)
	}
}

func TestMergedOverridesOneByOne(t *testing.T) {
	yes := true
	cluster := v1alpha1.InstallSpec{Disk: "/dev/sda", Image: "i"}
	selector := map[string]any{"type": "ssd"}
	for _, c := range []struct{ own, want v1alpha1.InstallSpec }{
		{v1alpha1.InstallSpec{}, cluster},
		{v1alpha1.InstallSpec{Disk: "/dev/sdb"}, v1alpha1.InstallSpec{Disk: "/dev/sdb", Image: "i"}},
		{v1alpha1.InstallSpec{DiskSelector: selector, Wipe: &yes}, v1alpha1.InstallSpec{DiskSelector: selector, Image: "i", Wipe: &yes}},
		{v1alpha1.InstallSpec{Schematic: "s"}, v1alpha1.InstallSpec{Disk: "/dev/sda", Schematic: "s"}},
	} {
		if got := cluster.Merged(c.own); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, want %+v", c.own, got, c.want)
		}
	}
}
