//go:build !race

package scenarios

// race: see race_on_test.go.
const race = false
