package tap

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Clear undoes what an earlier process left at a tap which another process is about to open (see [Initial]). MultiQueue
// says that the tap has several queues. A tap that a process has open is left alone. Clear opens the tap for a moment,
// in which another process cannot open it. The errors are those of Open, except unix.EBUSY.
func Clear(name string, multiQueue bool) error {
	clearing.Lock()
	defer clearing.Unlock()
	if err := checkExists(name); err != nil {
		return err
	}
	// Of a tap that is down the kernel does not report its reader, and lets a second process have queues.
	if _, attached, err := Queues(name); err != nil || attached > 0 || hasReader(name) {
		return err
	}
	queues := 1
	if multiQueue {
		queues = 2
	}
	return clearUnlessShared(name, queues)
}

// clearUnlessShared is Clear of a tap that no process had open a moment ago. The kernel lets another process attach to
// a multi-queue tap all the same.
func clearUnlessShared(name string, queues int) error {
	// A program that is being started has a copy of the file until it runs. With that copy a multi-queue tap would keep
	// the flags that it has here, whatever the next process asks for (tun_set_iff).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := attach(name, flagsOf(queues)|NoCarrier)
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	if err != nil {
		return err
	}
	_, attached, err := Queues(name)
	if err == nil && attached <= 1 {
		err = undo(fd, name)
	}
	return errors.Join(err, unix.Close(fd))
}
