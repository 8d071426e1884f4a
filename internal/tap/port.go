package tap

import (
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Port is a tap for a server that mostly sleeps. It is what Open returns, but its Read and Write
// make their system calls, which do not wait, without a word to Go's scheduler. The scheduler takes
// every other system call for one that may last, and wakes a thread that watches over it: for a server
// that wakes for one frame, this was half of its processor time.
//
// One goroutine may read and one may write at a time.
type Port struct {
	*os.File
	raw         syscall.RawConn
	read, write call
}

// OpenPort is Open for such a server.
func OpenPort(name string) (*Port, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	p := &Port{File: f, raw: raw}
	p.read = call{number: unix.SYS_READ}
	p.read.try = p.read.once
	p.write = call{number: unix.SYS_WRITE}
	p.write.try = p.write.once
	return p, nil
}

// Read reads one frame. Its errors are those of os.File.
func (p *Port) Read(b []byte) (int, error) { return p.do(&p.read, p.raw.Read, "read", b) }

// Write sends one frame. Its errors are those of os.File.
func (p *Port) Write(b []byte) (int, error) { return p.do(&p.write, p.raw.Write, "write", b) }

func (p *Port) do(c *call, wait func(func(fd uintptr) bool) error, op string, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.b = b
	err := wait(c.try)
	c.b = nil
	switch {
	case err != nil:
		// A raw connection's error of a closed file is no os.ErrClosed. That of a read of nothing is.
		if _, closed := p.File.Read(nil); closed != nil {
			err = closed
		}
		return 0, err
	case c.errno != 0:
		return 0, &fs.PathError{Op: op, Path: p.Name(), Err: c.errno}
	}
	return c.n, nil
}

// call is a system call that is made again while the file is not ready.
type call struct {
	number uintptr
	try    func(fd uintptr) bool // once, bound to this call: binding it each time would allocate
	b      []byte
	n      int
	errno  syscall.Errno
}

func (c *call) once(fd uintptr) bool {
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
