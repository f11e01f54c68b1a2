// Package effect says what a change of a configuration path does to a node: data with its source.
package effect

// Effect class of a change.
type Effect string

// Classes, least disruptive last in a machine's verdict: reboot, restart, live, install.
const (
	None    Effect = "none"
	Live    Effect = "live"
	Restart Effect = "restart"
	Reboot  Effect = "reboot"
	Install Effect = "install"
)
