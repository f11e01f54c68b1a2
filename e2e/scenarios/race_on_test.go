//go:build race

package scenarios

// race: the tests run under the race detector, so the binary is built with it too.
const race = true
