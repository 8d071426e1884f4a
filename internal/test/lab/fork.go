package lab

import "syscall"

// AwaitForks waits until all programs that this process is starting are being executed. Until then they have copies of
// files that were closed before, such as of a tap, and they keep them for a moment more.
func AwaitForks() {
	syscall.ForkLock.RLock()
	//lint:ignore SA2001 to wait is all that is wanted
	syscall.ForkLock.RUnlock()
}
