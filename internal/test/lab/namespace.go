// Package lab makes network namespaces, creates pods' networks in them, and shows what an administrator sees there. It
// is for tests and demonstrations.
//
// A namespace has no name and no mount: the namespace ends with its file, and so with the process, however that ends.
package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
)

// Namespace is a network namespace.
type Namespace struct{ File *os.File }

// New makes an empty namespace, and prepares it. The caller closes the File.
func New() (Namespace, error) {
	type result struct {
		file *os.File
		err  error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end. While this goroutine holds it, the next one gets another thread.
			n, err := New()
			made <- result{n.File, err}
			runtime.UnlockOSThread()
			return
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{nil, fmt.Errorf("make a network namespace: %w", err)}
			return
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			if err = prepare(); err != nil {
				file.Close()
			}
		}
		made <- result{file, err}
	}()
	r := <-made
	return Namespace{r.file}, r.err
}

// Prepare brings the loopback up, and switches duplicate address detection off: it takes two seconds, and there is no
// other station.
func (n Namespace) Prepare() error { return n.Do(prepare) }

func prepare() error {
	return errors.Join(
		setSysctl("ipv6/conf/all/accept_dad", "0"),
		setSysctl("ipv6/conf/default/accept_dad", "0"),
		withHandle(func(h *handle) error { return h.up("lo") }),
	)
}

// setSysctl writes a sysctl below net of the calling thread's namespace.
func setSysctl(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
}

// Do calls f on a thread in the namespace.
func (n Namespace) Do(f func() error) error { return netns.Do(n.File, f) }

// Run runs a program in the namespace, with a mount namespace of its own, and returns its standard output. ip(8)
// complains on standard error of namespaces that another program deletes meanwhile. An error holds both.
func (n Namespace) Run(program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := n.Do(cmd.Run)
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, &out, &complaints)
	}
	return out.String(), err
}

// PacketSocket returns a socket that sends frames by a link as they are (packet(7)). One that listens also receives the
// frames which the link receives or sends.
func (n Namespace) PacketSocket(link string, listen bool) (*os.File, error) {
	protocol := uint16(0)
	if listen {
		protocol = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in the network's order
	}
	fd := -1
	err := n.Do(func() error {
		at, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: at.Index, Protocol: protocol}))
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	return os.NewFile(uintptr(fd), link), nil
}

// DialTCP connects from the namespace, to an address and a port.
func (n Namespace) DialTCP(ctx context.Context, to string) (c net.Conn, err error) {
	// A dialer starts goroutines, and so threads outside of the namespace, for a host with a name or two addresses
	// only.
	err = n.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", to)
		return err
	})
	return c, err
}

// Ask connects from the namespace, and returns the line of the station that answers: see [Answers].
func (n Namespace) Ask(ctx context.Context, to string) (string, error) {
	c, err := n.DialTCP(ctx, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return ReadAnswer(ctx, c)
}

// ReadAnswer returns the line that the station at the other end says.
func ReadAnswer(ctx context.Context, c net.Conn) (string, error) {
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	line, err := bufio.NewReader(c).ReadString('\n')
	if ctx.Err() != nil {
		err = fmt.Errorf("connected to %v, which says nothing: %w", c.RemoteAddr(), context.Cause(ctx))
	}
	return strings.TrimSpace(line), err
}

// Answers is a TCP service of a station.
type Answers struct {
	listener net.Listener
	serving  sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]bool // nil: closed
}

// Answer serves TCP at an address and port of the namespace, or at a port of all of them (":8000"), until Close. Each
// connection gets the line "NAME sees ADDRESS:PORT", which says who calls, and then its own bytes back.
func (n Namespace) Answer(name, at string) (*Answers, error) {
	a := &Answers{open: map[net.Conn]bool{}}
	err := n.Do(func() (err error) {
		a.listener, err = net.Listen("tcp", at)
		return err
	})
	if err != nil {
		return nil, err
	}
	a.serving.Go(func() {
		for {
			c, err := a.listener.Accept()
			if err != nil {
				return
			}
			a.serving.Go(func() { a.serve(name, c) })
		}
	})
	return a, nil
}

func (a *Answers) serve(name string, c net.Conn) {
	defer c.Close()
	a.mu.Lock()
	if a.open == nil {
		a.mu.Unlock()
		return
	}
	a.open[c] = true
	a.mu.Unlock()
	seen := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	seen = netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
	if _, err := fmt.Fprintf(c, "%s sees %v\n", name, seen); err == nil {
		io.Copy(c, c)
	}
	a.mu.Lock()
	delete(a.open, c)
	a.mu.Unlock()
}

// Close ends the service and its connections.
func (a *Answers) Close() {
	a.listener.Close()
	a.mu.Lock()
	for c := range a.open {
		c.Close()
	}
	a.open = nil
	a.mu.Unlock()
	a.serving.Wait()
}
