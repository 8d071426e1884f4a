package vmm

import "time"

// SetGrace sets the time between SIGTERM and SIGKILL, and returns the earlier one.
func SetGrace(d time.Duration) (earlier time.Duration) {
	earlier, grace = grace, d
	return earlier
}
