package fleet

import (
	"slices"
	"strconv"
	"strings"
)

// suggest gives a hint for a name that is not among the valid ones: the nearest ("did you mean"), or, where none is
// near, all of them if they are few.
func suggest(got string, valid []string) string {
	if near := nearest(got, valid); near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	if len(valid) == 0 || len(valid) > 12 {
		return ""
	}
	sorted := slices.Sorted(slices.Values(valid))
	return "valid are: " + strings.Join(sorted, ", ")
}

// nearest gives the valid name with the smallest edit distance, "" where none is near enough to be meant. Ties go
// by the alphabet.
func nearest(got string, valid []string) string {
	const many = 500 // a fleet can have thousands of names, and as many that are wrong
	if len(got) > 100 || len(valid) > many {
		return ""
	}
	best, bestDistance := "", max(2, len(got)/3)+1
	for _, v := range slices.Sorted(slices.Values(valid)) {
		d := distance(strings.ToLower(got), strings.ToLower(v))
		if d < bestDistance && d < min(len(got), len(v)) { // as much left as changed: w1 does not mean cp1
			best, bestDistance = v, d
		}
	}
	return best
}

// distance is the Damerau-Levenshtein distance with adjacent transpositions (optimal string alignment), in bytes.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
