package lab

import "syscall"

// AwaitForks waits until no program that this process is starting has copies of files that were closed before. It has
// them until it is executed: to another process, a tap that the test has closed would be in use so long.
func AwaitForks() {
	syscall.ForkLock.RLock()
	//lint:ignore SA2001 to wait is all that is wanted
	syscall.ForkLock.RUnlock()
}
