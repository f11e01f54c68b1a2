package quorum

import "testing"

func TestKeeps(t *testing.T) {
	for _, c := range []struct {
		name  string
		touch Touch
		keeps bool
		sum   string
	}{
		{"three, one touched", Touch{3, 3, 3, true}, true, "quorum is 2 of 3 voters: 3 healthy before, 2 after"},
		{"three, one down, another touched", Touch{3, 3, 2, true}, false, "quorum is 2 of 3 voters: 2 healthy before, 1 after"},
		{"three, the down one touched", Touch{3, 3, 2, false}, true, "quorum is 2 of 3 voters: 2 healthy before, 2 after"},
		{"quorum lost, a down one touched", Touch{3, 3, 1, false}, true, "quorum is 2 of 3 voters: 1 healthy before, 1 after"},
		{"two", Touch{2, 2, 2, true}, false, "quorum is 2 of 2 voters: 2 healthy before, 1 after"},
		{"one", Touch{1, 1, 1, true}, false, "quorum is 1 of 1 voters: 1 healthy before, 0 after"},
		{"five, two down", Touch{5, 5, 3, true}, false, "quorum is 3 of 5 voters: 3 healthy before, 2 after"},
		{"five, one down", Touch{5, 5, 4, true}, true, "quorum is 3 of 5 voters: 4 healthy before, 3 after"},
		{"etcd lists more than are approved", Touch{3, 5, 3, true}, false, "quorum is 3 of 5 voters: 3 healthy before, 2 after"},
		{"more are approved than etcd lists", Touch{5, 3, 3, true}, false, "quorum is 3 of 5 voters: 3 healthy before, 2 after"},
	} {
		s := Keeps(c.touch)
		if s.Keeps != c.keeps || s.String() != c.sum {
			t.Errorf("%s: %v %q", c.name, s.Keeps, s)
		}
	}
}

func TestOf(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4} {
		if Of(n) != want {
			t.Errorf("quorum of %d is %d, not %d", n, Of(n), want)
		}
	}
	for n, want := range map[int]bool{0: false, 1: false, 2: true, 3: false, 4: true} {
		if Even(n) != want {
			t.Errorf("even %d: %v", n, Even(n))
		}
	}
}

func TestOneLeader(t *testing.T) {
	for _, c := range []struct {
		leaders []string
		want    bool
	}{{nil, false}, {[]string{"a"}, true}, {[]string{"a", "a"}, true}, {[]string{"a", "b"}, false}, {[]string{"a", ""}, false}, {[]string{"", ""}, false}} {
		if OneLeader(c.leaders) != c.want {
			t.Errorf("%q: %v", c.leaders, !c.want)
		}
	}
}

func TestSameMembers(t *testing.T) {
	for _, c := range []struct {
		lists [][]string
		want  bool
	}{
		{nil, false},
		{[][]string{{"a", "b"}}, true},
		{[][]string{{"a", "b"}, {"b", "a"}}, true},
		{[][]string{{"a", "b"}, {"a"}}, false},
		{[][]string{{"a", "b"}, {"a", "c"}}, false},
	} {
		if SameMembers(c.lists) != c.want {
			t.Errorf("%q: %v", c.lists, !c.want)
		}
	}
}

func TestWorkerSlots(t *testing.T) {
	for _, c := range [][3]int{{1, 0, 1}, {1, 1, 0}, {1, 5, 0}, {3, 1, 2}, {0, 0, 1}, {-1, 0, 1}} {
		if got := WorkerSlots(c[0], c[1]); got != c[2] {
			t.Errorf("max %d, unavailable %d: %d, not %d", c[0], c[1], got, c[2])
		}
	}
}
