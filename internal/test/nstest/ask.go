package nstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var transports = map[string]struct{ kind, number int }{
	"tcp":  {unix.SOCK_STREAM, unix.IPPROTO_TCP},
	"udp":  {unix.SOCK_DGRAM, unix.IPPROTO_UDP},
	"sctp": {unix.SOCK_STREAM, unix.IPPROTO_SCTP},
}

// HasSCTP reports whether the kernel has sockets of that protocol.
func HasSCTP() bool {
	fd, err := open("sctp", netip.IPv4Unspecified())
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// HasFlowTables reports whether the kernel has flow tables of nftables.
func HasFlowTables() bool {
	return exec.Command("unshare", "--net", "nft", "add table inet probe; add flowtable inet probe flows { hook ingress priority 0; }").Run() == nil
}

// open returns a socket for the address's family that does not block.
func open(protocol string, a netip.Addr) (int, error) {
	family := unix.AF_INET6
	if a.Is4() {
		family = unix.AF_INET
	}
	t := transports[protocol]
	fd, err := unix.Socket(family, t.kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, t.number)
	return fd, os.NewSyscallError("socket", err)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// Serve answers at addresses of the namespace, by "tcp", "udp" or "sctp", until the test ends: "NAME:PORT
// sees ADDRESS" for every connection, which gets its own bytes back then, or for every datagram, in
// as many bytes as that has.
func (n *Namespace) Serve(name, protocol string, at ...netip.AddrPort) {
	n.t.Helper()
	stop, err := n.TryServe(name, protocol, at...)
	n.t.Cleanup(stop)
	if err != nil {
		n.t.Fatal(err)
	}
}

// TryServe is Serve until stop is called, which closes connections too. The error says which address cannot be had.
func (n *Namespace) TryServe(name, protocol string, at ...netip.AddrPort) (stop func(), err error) {
	s := &service{}
	err = n.Do(func() error {
		for _, a := range at {
			name := fmt.Sprintf("%s:%d", name, a.Port())
			f, err := listen(protocol, a)
			if err != nil {
				return fmt.Errorf("serve %s %v: %w", protocol, a, err)
			}
			if protocol == "udp" {
				c, err := net.FilePacketConn(f)
				f.Close()
				if err != nil {
					return err
				}
				s.add(c)
				s.serving.Go(func() { answerDatagrams(name, c) })
				continue
			}
			l, err := net.FileListener(f)
			f.Close()
			if err != nil {
				return err
			}
			s.add(l)
			s.serving.Go(func() { s.answerConnections(name, l) })
		}
		return nil
	})
	return s.stop, err
}

// service is what TryServe began.
type service struct {
	serving sync.WaitGroup
	mu      sync.Mutex
	sockets []io.Closer
	stopped bool
}

// add keeps a socket until stop.
func (s *service) add(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets = append(s.sockets, c)
	if s.stopped {
		c.Close()
	}
}

func (s *service) stop() {
	s.mu.Lock()
	s.stopped = true
	for _, c := range s.sockets {
		c.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

func listen(protocol string, a netip.AddrPort) (*os.File, error) {
	fd, err := open(protocol, a.Addr())
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), protocol)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		os.NewSyscallError("bind", unix.Bind(fd, sockaddr(a))),
	)
	if err == nil && protocol != "udp" {
		err = os.NewSyscallError("listen", unix.Listen(fd, 16))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// seen is an address without its port.
func seen(a net.Addr) string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	return ap.Addr().Unmap().String()
}

func answerDatagrams(name string, c net.PacketConn) {
	b := make([]byte, 1<<16)
	for {
		size, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier answer
		}
		answer := fmt.Sprintf("%s sees %s", name, seen(from))
		c.WriteTo(fmt.Appendf(nil, "%-*s\n", size-1, answer), from)
	}
}

func (s *service) answerConnections(name string, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.add(c)
		s.serving.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintf(c, "%s sees %s\n", name, seen(c.RemoteAddr()))
			io.Copy(c, c)
		})
	}
}

// Question is one that has been asked and may be answered.
type Question struct {
	fd  int
	err error
}

// Question opens a connection, or sends a datagram of that size, and does not wait. An invalid from
// is the kernel's choice.
func (n *Namespace) Question(protocol string, from netip.Addr, to netip.AddrPort, size int) (*Question, error) {
	q := &Question{fd: -1}
	err := n.Do(func() (err error) {
		// An association of SCTP has all addresses of a host unless it is bound to one.
		if protocol == "sctp" && !from.IsValid() {
			if from, err = source(to); err != nil {
				return err
			}
		}
		if q.fd, err = open(protocol, to.Addr()); err != nil {
			return err
		}
		if from.IsValid() {
			if err := unix.Bind(q.fd, sockaddr(netip.AddrPortFrom(from, 0))); err != nil {
				return os.NewSyscallError("bind", err)
			}
		}
		if err := unix.Connect(q.fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS {
			q.err = os.NewSyscallError("connect", err)
			return nil
		}
		if protocol == "udp" {
			_, err := unix.Write(q.fd, make([]byte, size))
			q.err = os.NewSyscallError("send", err)
		}
		return nil
	})
	if err != nil {
		q.Close()
	}
	return q, err
}

// source is the address from which the kernel would send.
func source(to netip.AddrPort) (netip.Addr, error) {
	fd, err := open("udp", to.Addr())
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return netip.Addr{}, os.NewSyscallError("connect", err)
	}
	own, err := unix.Getsockname(fd)
	switch own := own.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(own.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(own.Addr), nil
	}
	return netip.Addr{}, os.NewSyscallError("getsockname", err)
}

// Answer waits for the answer, and returns its text: who answers, and whom it sees. The error is
// os.ErrDeadlineExceeded if nothing comes in time, ECONNREFUSED if the port is closed or a router refuses.
func (q *Question) Answer(patience time.Duration) (string, error) {
	if q.err != nil {
		return "", q.err
	}
	var line []byte
	buffer := make([]byte, 1<<16)
	for end := time.Now().Add(patience); ; {
		left := max(0, time.Until(end))
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return "", os.NewSyscallError("poll", err)
		case ready == 0:
			return "", os.ErrDeadlineExceeded
		}
		size, err := unix.Read(q.fd, buffer)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			continue
		case err != nil:
			return "", os.NewSyscallError("read", err)
		case size == 0:
			return "", io.ErrUnexpectedEOF
		}
		line = append(line, buffer[:size]...)
		if at := bytes.IndexByte(line, '\n'); at >= 0 {
			return strings.TrimSpace(string(line[:at])), nil
		}
	}
}

// Echo reports whether so many bytes come back that a connection is sent, after the answer.
func (q *Question) Echo(size int, patience time.Duration) error {
	end := time.Now().Add(patience)
	buffer := make([]byte, 1<<16)
	for sent, received := 0, 0; received < size; {
		events := int16(unix.POLLIN)
		if sent < size {
			events |= unix.POLLOUT
		}
		poll := []unix.PollFd{{Fd: int32(q.fd), Events: events}}
		left := time.Until(end).Milliseconds()
		if ready, err := unix.Poll(poll, int(max(0, left))); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		} else if ready == 0 && left <= 0 {
			return fmt.Errorf("of %d bytes %d came back: %w", size, received, os.ErrDeadlineExceeded)
		}
		if poll[0].Revents&unix.POLLOUT != 0 {
			n, err := unix.Write(q.fd, buffer[:min(len(buffer), size-sent)])
			if err != nil && err != unix.EAGAIN {
				return os.NewSyscallError("write", err)
			}
			sent += max(0, n)
		}
		if poll[0].Revents&^unix.POLLOUT != 0 {
			n, err := unix.Read(q.fd, buffer)
			if err != nil && err != unix.EAGAIN {
				return os.NewSyscallError("read", err)
			}
			if n == 0 {
				return io.ErrUnexpectedEOF
			}
			received += max(0, n)
		}
	}
	return nil
}

// Close ends it.
func (q *Question) Close() {
	if q.fd >= 0 {
		unix.Close(q.fd)
	}
	q.fd = -1
}

// Send puts a frame on the wire at a link of the namespace.
func (n *Namespace) Send(t testing.TB, link string, frame []byte) {
	t.Helper()
	socket, err := n.PacketSocket(link, false)
	if err == nil {
		_, err = socket.Write(frame)
		socket.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}
