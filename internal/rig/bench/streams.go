package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
)

// The time of a turn in which nothing is counted, and that in which octets are.
var streamWarm, streamCounted = 500 * time.Millisecond, 700 * time.Millisecond

// measureStreams measures what a guest's program gets by TCP through guestwire's bindings and through passt. The guest
// is a namespace with Linux's TCP, and its server is in a namespace at the other end of the pod's NIC.
func measureStreams(s *scope, w io.Writer, rounds int) error {
	names := []string{"redirect", "bridge", "routed", "masquerade", "passt, MTU 32768", "passt, MTU 1500"}
	networks := make([]network, len(names))
	for i, start := range []func(network) error{
		func(n network) error { return s.wire(n, infra.Redirect{}) },
		func(n network) error { return s.wire(n, infra.Bridge{}) },
		func(n network) error { return s.wire(n, infra.Routed{}) },
		func(n network) error { return s.wire(n, infra.Masquerade{}) },
		func(n network) error { return s.startPasst(n, passtMTU) },
		func(n network) error { return s.startPasst(n, 1500) },
	} {
		_, pods, err := s.newWorld(1)
		if err != nil {
			return err
		}
		networks[i].pod = pods[0]
		if networks[i].guest, err = lab.New(); err != nil {
			return err
		}
		s.atEnd(networks[i].guest.File.Close)
		if err := errors.Join(pods[0].gateway(), start(networks[i])); err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
	}
	var rows []row
	for direction, title := range []string{"from the guest", "to the guest"} {
		got := newRow("", len(networks))
		err := s.inTurns(rounds, len(networks), func(_, i int) error {
			rate, err := networks[i].stream(s.ctx, direction == 0)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", title, names[i], err)
			}
			got.add(i, rate)
			return nil
		})
		if err != nil {
			return err
		}
		for i, name := range names[1:] {
			rows = append(rows, row{title + ", " + name, [][]float64{got.values[0], got.values[i+1]}})
		}
	}
	printTable(w, "TCP, IPv4, Mbit/s", []string{"redirect", "other"}, rows)
	return nil
}

// network is a pod with a guest, whose server is in the pod's world.
type network struct {
	*pod
	guest lab.Namespace
}

// connect has two threads copy frames between ports until they are closed. Each has to be woken, as a program has.
func (s *scope) connect(a, b io.ReadWriteCloser) {
	var running sync.WaitGroup
	running.Go(func() { copyFrames(a, b) })
	running.Go(func() { copyFrames(b, a) })
	s.atEnd(func() error {
		err := errors.Join(a.Close(), b.Close())
		running.Wait()
		return err
	})
}

// copyFrames ends when a port is closed. A frame for a link that is down is lost, as on a wire.
func copyFrames(to io.Writer, from io.Reader) {
	runtime.LockOSThread()
	for frame := make([]byte, 1<<17); ; {
		size, err := from.Read(frame)
		if err == nil {
			_, err = to.Write(frame[:size])
		}
		if err != nil && !errors.Is(err, unix.EIO) {
			return
		}
	}
}

// wire wires the pod by phase1's Setup, and connects the guest's tap with the pod's.
func (s *scope) wire(n network, binding infra.Binding) error {
	record, err := n.setup(s.ctx, infra.Spec{Binding: binding})
	if err != nil {
		return err
	}
	if err := ip(n.guest, "tuntap add eth0 mode tap vnet_hdr\nlink set eth0 address %v", record.MAC); err != nil {
		return err
	}
	inside, err := openTapFile(n.guest, "eth0", offloads)
	if err != nil {
		return err
	}
	outside, err := openTapFile(n.pod.Namespace, record.Tap, offloads)
	if err != nil {
		return errors.Join(err, inside.Close())
	}
	s.connect(inside, outside)
	return ip(n.guest, "link set eth0 mtu %d up\naddr add %v dev eth0\nroute add default via %v dev eth0 onlink",
		record.MTU, record.IPv4.Address, record.IPv4.Gateway())
}

// passtMTU is half of passt's own, with which streams from the guest stall more often (passt 2023-03-09).
const passtMTU = 32768

// guestQueue is longer than TCP's window: a tap drops what does not fit, where a virtual machine's NIC stops the guest.
const guestQueue = 20000

// startPasst starts passt in the pod as an unprivileged user, for a guest with the pod's address.
func (s *scope) startPasst(n network, mtu int) error {
	if err := ip(n.guest, "tuntap add eth0 mode tap\nlink set eth0 address %v mtu %d txqueuelen %d up\naddr add %v/24 dev eth0\nroute add default via %v dev eth0",
		podMAC, mtu, guestQueue, pods[0], gateways[0]); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(n.state, 0o700), os.Chown(n.state, lab.User, lab.User)); err != nil {
		return err
	}
	socket := filepath.Join(n.state, "socket")
	passt, err := s.startProcess(n.pod.Namespace, lab.User, "passt", "--foreground", "--ipv4-only", "--no-map-gw",
		"--interface", nic, "--mtu", strconv.Itoa(mtu), "--socket", socket)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", socket)
	for end := time.Now().Add(20 * time.Second); err != nil; conn, err = net.Dial("unix", socket) {
		if ended := passt.checkAlive(); ended != nil || time.Now().After(end) {
			return errors.Join(err, ended)
		}
		if err := sleep(s.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	port, err := openTapFile(n.guest, "eth0", !offloads)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	s.connect(port, stream{conn, bufio.NewReaderSize(conn, 1<<18)})
	// The socket has room for whole frames: Debian's passt drops a frame if it finds a part.
	return control(conn.(*net.UnixConn), func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20) })
}

// stream is a socket on which each frame has its length in front (QEMU's -netdev stream).
type stream struct {
	net.Conn
	in *bufio.Reader
}

func (s stream) Write(frame []byte) (int, error) {
	both := net.Buffers{binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame}
	_, err := both.WriteTo(s.Conn)
	return len(frame), err
}

func (s stream) Read(frame []byte) (int, error) {
	var size [4]byte
	if _, err := io.ReadFull(s.in, size[:]); err != nil {
		return 0, err
	}
	return io.ReadFull(s.in, frame[:min(len(frame), int(binary.BigEndian.Uint32(size[:])))])
}

// counter counts what is written to it.
type counter struct{ atomic.Int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
}

// stream returns the Mbit a second that one TCP connection of the guest brings.
func (n network) stream(ctx context.Context, fromGuest bool) (rate float64, err error) {
	at := netip.AddrPortFrom(gateways[0], serverPort).String()
	var listener net.Listener
	if err := n.world.Do(func() (err error) { listener, err = net.Listen("tcp", at); return err }); err != nil {
		return 0, err
	}
	defer listener.Close()
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	from, err := n.guest.DialTCP(limited, at)
	if err != nil {
		return 0, err
	}
	to, err := listener.Accept()
	if err != nil {
		return 0, errors.Join(err, from.Close())
	}
	if !fromGuest {
		from, to = to, from
	}
	var octets counter
	var running sync.WaitGroup
	defer running.Wait()
	defer abort(from)
	defer abort(to)
	running.Go(func() {
		runtime.LockOSThread()
		_, _ = io.CopyBuffer(&octets, struct{ io.Reader }{to}, make([]byte, 1<<18))
	})
	running.Go(func() {
		runtime.LockOSThread()
		for data := make([]byte, 1<<18); ; {
			if _, err := from.Write(data); err != nil {
				return
			}
		}
	})
	if err := sleep(ctx, streamWarm); err != nil {
		return 0, err
	}
	had, begin := octets.Load(), time.Now()
	if err := sleep(ctx, streamCounted); err != nil {
		return 0, err
	}
	rate = float64(octets.Load()-had) / time.Since(begin).Seconds() * 8 / 1e6
	if rate == 0 {
		err = errors.New("nothing came")
	}
	return rate, err
}

// abort ends a connection without a wait for what is on its way.
func abort(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
}
