package tap

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Responder is a tap for a server that mostly sleeps: the file that [Open] returns, with a cheaper Read and Write.
// Both use raw system calls on the non-blocking file, unknown to Go's scheduler. Before a normal
// system call the scheduler expects that the call may block, and wakes its monitor thread. For a server that
// wakes for single frames, this was half of its CPU time.
//
// One goroutine may read and one goroutine may write at a time.
type Responder struct {
	*os.File
	raw         syscall.RawConn
	read, write call
}

// OpenResponder attaches to a tap as [Open] does, with the same errors.
func OpenResponder(name string) (*Responder, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	p := &Responder{File: f, raw: raw}
	p.read = call{number: unix.SYS_READ}
	p.read.try = p.read.attempt
	p.write = call{number: unix.SYS_WRITE}
	p.write.try = p.write.attempt
	return p, nil
}

// Read reads one frame. The errors are those of os.File.
func (p *Responder) Read(b []byte) (int, error) { return p.do(&p.read, p.raw.Read, "read", b) }

// Write sends one frame. The errors are those of os.File.
func (p *Responder) Write(b []byte) (int, error) { return p.do(&p.write, p.raw.Write, "write", b) }

func (p *Responder) do(c *call, wait func(func(fd uintptr) bool) error, op string, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.b = b
	err := wait(c.try)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// The poller calls a tap "not pollable" that was deleted while nothing waited. The system call says what it is.
		// A RawConn of a closed file does not return os.ErrClosed. Read does, also with an empty buffer.
		var done bool
		if _, closed := p.File.Read(nil); closed != nil {
			err = closed
		} else if p.raw.Control(func(fd uintptr) { done = c.attempt(fd) }) == nil && done {
			err = nil
		}
	}
	c.b = nil
	switch {
	case err != nil:
		return 0, err
	case c.errno != 0:
		return 0, &fs.PathError{Op: op, Path: p.Name(), Err: c.errno}
	}
	return c.n, nil
}

// call is a read or write that RawConn repeats until the file is ready.
type call struct {
	number uintptr
	try    func(fd uintptr) bool // the method attempt as a value: making the value each time would allocate
	b      []byte
	n      int
	errno  syscall.Errno
}

// attempt makes the system call. It returns false if the file is not ready.
func (c *call) attempt(fd uintptr) bool {
	for {
		n, _, errno := unix.RawSyscall(c.number, fd, uintptr(unsafe.Pointer(&c.b[0])), uintptr(len(c.b)))
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		c.n, c.errno = int(n), errno
		return true
	}
}
