package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/phase1"
)

// throughput is how long the ways of a guest's traffic are measured.
type throughput struct {
	rounds        int
	warm, counted time.Duration // of each turn
}

// printThroughput prints what a guest's programs get through guestwire's bindings, passt and slirp4netns. The guest is a
// namespace with Linux's TCP, and its server is in a namespace at the other end of the pod's NIC.
func printThroughput(ctx context.Context, w io.Writer, l throughput) (err error) {
	if l.rounds < 1 || l.counted <= 0 {
		return errors.New("the throughput: want 1 or more rounds and a time above 0")
	}
	programs := map[string]string{"passt": "passt", "slirp4netns": unpacked.Path("podman/usr/bin/slirp4netns"), "ip": "ip", "nsenter": "nsenter", "setpriv": "setpriv"}
	for name, path := range programs {
		if programs[name], err = exec.LookPath(path); err != nil {
			return fmt.Errorf("%s is missing: make install, or install it: %w", name, err)
		}
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // passt's user must enter it
		return err
	}
	var networks []*network
	defer func() {
		var pods []*pod
		for _, n := range networks {
			err = errors.Join(err, n.close())
			pods = append(pods, n.pod)
		}
		err = errors.Join(err, closePods(pods))
	}()
	wired := func(binding infra.Binding) func(context.Context, *network) error {
		return func(ctx context.Context, n *network) error { return n.wire(ctx, binding) }
	}
	var names []string
	for _, way := range []struct {
		name  string
		start func(context.Context, *network) error
	}{
		{"redirect", wired(infra.Redirect{})},
		{"bridge", wired(infra.Bridge{})},
		{"masquerade", wired(infra.Masquerade{})},
		{"routed", wired(infra.Routed{})},
		{"passt, MTU 32768", func(ctx context.Context, n *network) error {
			return n.startPasst(ctx, programs["passt"], passtMTU, dir)
		}},
		{"passt, MTU 1500", func(ctx context.Context, n *network) error { return n.startPasst(ctx, programs["passt"], 1500, dir) }},
		{"slirp4netns", func(ctx context.Context, n *network) error { return n.startSlirp(ctx, programs["slirp4netns"]) }},
	} {
		names = append(names, way.name)
		n, err := newNetwork(ctx, dir)
		if n != nil {
			networks = append(networks, n)
		}
		if err == nil {
			err = way.start(ctx, n)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
	}

	fmt.Fprintf(w, "A guest with Linux's TCP and a server in another namespace: what their programs get, IPv4.\n"+
		"guestwire: a thread copies frames between the guest's and the pod's tap, with offloads, MTU 1500. passt: a thread copies\n"+
		"frames between the guest's tap and passt's socket, without offloads. slirp4netns: it has the guest's tap itself, MTU %d.\n"+
		"Linux %s, %d CPUs, %s; %d rounds, in each of which all have a turn of %v.\n\n", peerMTU,
		release(), runtime.NumCPU(), runtime.Version(), l.rounds, l.counted)
	for _, q := range []struct {
		name, format string
		measure      func(context.Context, *network) (float64, error)
	}{
		{"TCP from the guest, Mbit/s", "%.0f", func(ctx context.Context, n *network) (float64, error) { return l.stream(ctx, n, true) }},
		{"TCP to the guest, Mbit/s", "%.0f", func(ctx context.Context, n *network) (float64, error) { return l.stream(ctx, n, false) }},
		{"UDP from the guest, datagrams/s", "%.0f", func(ctx context.Context, n *network) (float64, error) { return l.datagrams(ctx, n, true) }},
		{"UDP to the guest, datagrams/s", "%.0f", func(ctx context.Context, n *network) (float64, error) { return l.datagrams(ctx, n, false) }},
	} {
		values := make([][]float64, len(networks))
		for range l.rounds {
			for _, i := range rand.Perm(len(networks)) {
				got, err := q.measure(ctx, networks[i])
				if err != nil {
					return fmt.Errorf("%s, %s: %w", q.name, names[i], errors.Join(err, networks[i].alive()))
				}
				values[i] = append(values[i], got)
			}
		}
		printWays(w, q.name, q.format, names, values)
	}
	return nil
}

// network is a pod with a guest, whose server is at the other end of the pod's NIC.
type network struct {
	pod        *pod
	guest, far *os.File // namespaces
	program    *process // of a peer
	closers    []func() error
}

// newNetwork creates a pod and its server's namespace. If it fails, the network may still have to be closed.
func newNetwork(ctx context.Context, dir string) (*network, error) {
	p, err := newPod(ctx, dir)
	if err != nil {
		return nil, err
	}
	n := &network{pod: p}
	if n.far, err = n.namespace(ctx, "far-"+p.name); err != nil {
		return n, err
	}
	if err := ip(ctx, fmt.Sprintf("link set %s netns far-%s\n", p.peer, p.name), "-n", "world"); err != nil {
		return n, err
	}
	// The addresses and the MAC are those that the pod knows of its gateways.
	err = ip(ctx, fmt.Sprintf("link set %[1]s address %[2]v\naddr add %[3]v/24 dev %[1]s\nlink set %[1]s up\n", p.peer, nextHop, destination[0]), "-n", "far-"+p.name)
	if err != nil {
		return n, err
	}
	return n, p.waitSettled(ctx)
}

// namespace creates a namespace that ends with the network.
func (n *network) namespace(ctx context.Context, name string) (*os.File, error) {
	file, err := newNamespace(ctx, name)
	if err == nil {
		n.closers = append(n.closers, func() error {
			return errors.Join(file.Close(), ip(context.Background(), "netns del "+name+"\n"))
		})
	}
	return file, err
}

func (n *network) close() (err error) {
	for i := len(n.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, n.closers[i]())
	}
	return err
}

func (n *network) alive() error {
	if n.program == nil {
		return nil
	}
	return n.program.checkAlive()
}

// wire wires the pod by phase1's Setup.
func (n *network) wire(ctx context.Context, binding infra.Binding) error {
	config := phase1.Config{NetNS: n.pod.file, Dir: n.pod.node(), Spec: infra.Spec{NIC: nic, Binding: binding, State: n.pod.state}}
	record, err := phase1.Setup(ctx, config)
	if err != nil {
		return err
	}
	guest, err := newTapGuest(ctx, n.pod, record)
	if err != nil {
		return err
	}
	n.guest = guest.file
	n.closers = append(n.closers, guest.close)
	return nil
}

// peerMTU is what container engines give slirp4netns, which does not segment for the guest.
const peerMTU = 65520

// passtMTU is half of passt's own, with which streams from the guest stall more often (passt 2023-03-09).
const passtMTU = 32768

// guestQueue is longer than TCP's window: a tap drops what does not fit, where a virtual machine's NIC stops the guest.
const guestQueue = 20000

// startPasst starts passt in the pod as an unprivileged user, and a guest with the pod's address.
func (n *network) startPasst(ctx context.Context, program string, mtu int, dir string) (err error) {
	name := "guest-" + n.pod.name
	if n.guest, err = n.namespace(ctx, name); err != nil {
		return err
	}
	err = ip(ctx, fmt.Sprintf("link set lo up\ntuntap add eth0 mode tap\nlink set eth0 address %v mtu %d txqueuelen %d up\naddr add %v/24 dev eth0\nroute add default via %v dev eth0\n",
		guestMAC, mtu, guestQueue, guestIPv4Pod, destination[0]), "-n", name)
	if err != nil {
		return err
	}
	var port *os.File
	if err := netns.Do(n.guest, func() (err error) { port, err = openPlainTap("eth0"); return err }); err != nil {
		return err
	}
	sockets, id := filepath.Join(dir, "passt-"+n.pod.name), fmt.Sprint(launcherUID)
	if err := errors.Join(os.Mkdir(sockets, 0o700), os.Chown(sockets, launcherUID, launcherUID)); err != nil {
		return errors.Join(err, port.Close())
	}
	socket := filepath.Join(sockets, "socket")
	n.program, err = startProcess(n.pod.name, []string{"--reuid", id, "--regid", id, "--clear-groups"},
		program, "--foreground", "--one-off", "--ipv4-only", "--no-map-gw", "--interface", nic, "--mtu", fmt.Sprint(mtu), "--socket", socket)
	if err != nil {
		return errors.Join(err, port.Close())
	}
	var conn net.Conn
	for end := time.Now().Add(20 * time.Second); ; {
		if conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		if ended := n.alive(); ended != nil || time.Now().After(end) {
			return errors.Join(err, ended, port.Close())
		}
		if err := sleep(ctx, settleTime); err != nil {
			return errors.Join(err, port.Close())
		}
	}
	if err := bigBuffer(conn.(*net.UnixConn)); err != nil {
		return errors.Join(err, conn.Close(), port.Close())
	}
	var copies sync.WaitGroup
	copies.Go(func() { alone(); _ = framesToStream(conn, port) })
	copies.Go(func() { alone(); _ = framesFromStream(port, conn) })
	n.closers = append(n.closers, func() error {
		err := n.program.stop()
		conn.Close()
		port.Close()
		copies.Wait()
		return err
	})
	return nil
}

// bigBuffer gives the stream room for whole frames: Debian's passt drops a frame of which it finds a part.
func bigBuffer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	controlled := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20) })
	return errors.Join(controlled, os.NewSyscallError("setsockopt SO_SNDBUFFORCE", err))
}

// openPlainTap opens a tap without headers and offloads: QEMU's stream, which passt takes, carries neither.
func openPlainTap(name string) (*os.File, error) {
	fd, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach to tap %s: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil // Go's poller takes the file only when it is attached
}

// framesToStream and framesFromStream copy frames between a tap and a stream in which each has its length in front (QEMU's
// -netdev stream), until one of both is closed.
func framesToStream(to io.Writer, port io.Reader) error {
	frame := make([]byte, 1<<17)
	for {
		size, err := port.Read(frame[4:])
		if err != nil {
			return err
		}
		binary.BigEndian.PutUint32(frame, uint32(size))
		if _, err := to.Write(frame[:4+size]); err != nil {
			return err
		}
	}
}

func framesFromStream(port io.Writer, from io.Reader) error {
	in, frame := bufio.NewReaderSize(from, 1<<18), make([]byte, 1<<17)
	for {
		if _, err := io.ReadFull(in, frame[:4]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(frame)
		if int(size) > len(frame) {
			return fmt.Errorf("a frame of %d octets", size)
		}
		if _, err := io.ReadFull(in, frame[:size]); err != nil {
			return err
		}
		if _, err := port.Write(frame[:size]); err != nil {
			return err
		}
	}
}

// startSlirp starts slirp4netns in the pod, for a namespace that plays the guest and gets its tap.
func (n *network) startSlirp(ctx context.Context, program string) (err error) {
	name := "guest-" + n.pod.name
	if n.guest, err = n.namespace(ctx, name); err != nil {
		return err
	}
	n.program, err = startProcess(n.pod.name, nil, program, "--configure", fmt.Sprintf("--mtu=%d", peerMTU), "--disable-dns",
		"--netns-type=path", namespacePath(name), "tap0")
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.program.stop)
	for end := time.Now().Add(20 * time.Second); ; {
		out, err := exec.CommandContext(ctx, "ip", "-n", name, "route", "show", "default").CombinedOutput()
		if err == nil && strings.Contains(string(out), "tap0") {
			return ip(ctx, fmt.Sprintf("link set tap0 txqueuelen %d\n", guestQueue), "-n", name)
		}
		if ended := n.alive(); ended != nil || time.Now().After(end) {
			return errors.Join(fmt.Errorf("wait for slirp4netns: %s", out), err, ended)
		}
		if err := sleep(ctx, settleTime); err != nil {
			return err
		}
	}
}

// alone gives the goroutine a thread of its own for good, so that each party of a way has to be woken, as programs have.
func alone() { runtime.LockOSThread() }

// rate counts as [limited] does, from the first arrival on.
func (l throughput) rate(ctx context.Context, count *atomic.Int64) (float64, error) {
	for end := time.Now().Add(20 * time.Second); count.Load() == 0; {
		if time.Now().After(end) {
			return 0, errors.New("nothing came in 20 s")
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return 0, err
		}
	}
	return limited{warm: l.warm, counted: l.counted}.rate(ctx, count)
}

// connect makes a TCP connection from the guest to its server.
func (n *network) connect() (guest, far *net.TCPConn, err error) {
	at := netip.AddrPortFrom(destination[0], serverPort).String()
	var listener net.Listener
	if err := netns.Do(n.far, func() (err error) { listener, err = net.Listen("tcp", at); return err }); err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	var conn net.Conn
	if err := netns.Do(n.guest, func() (err error) { conn, err = net.DialTimeout("tcp", at, 20*time.Second); return err }); err != nil {
		return nil, nil, err
	}
	guest = conn.(*net.TCPConn)
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, nil, errors.Join(err, guest.Close())
	}
	if conn, err = listener.Accept(); err != nil {
		return nil, nil, errors.Join(err, guest.Close())
	}
	return guest, conn.(*net.TCPConn), nil
}

// abort ends connections without a wait for what is on its way.
func abort(conns ...*net.TCPConn) {
	for _, c := range conns {
		_ = c.SetLinger(0)
		c.Close()
	}
}

// stream returns the Mbit a second that one TCP connection brings.
func (l throughput) stream(ctx context.Context, n *network, fromGuest bool) (float64, error) {
	from, to, err := n.connect()
	if err != nil {
		return 0, err
	}
	if !fromGuest {
		from, to = to, from
	}
	var octets atomic.Int64
	var running sync.WaitGroup
	defer running.Wait()
	defer abort(from, to)
	running.Go(func() { alone(); _, _ = io.CopyBuffer(counter{&octets}, struct{ io.Reader }{to}, make([]byte, 1<<18)) })
	running.Go(func() {
		alone()
		for data := make([]byte, 1<<18); ; {
			if _, err := from.Write(data); err != nil {
				return
			}
		}
	})
	perSecond, err := l.rate(ctx, &octets)
	return 8 * perSecond / 1e6, err
}

// Datagrams: octets of each, how many are on their way at most, and of how many the sender hears at once.
const datagramSize, datagramWindow, datagramStep = 64, 64, 16

// datagrams returns the datagrams a second that arrive. The sender has a window, as a receiver without CPU time would lose
// what does not fit into queues, which are of different lengths.
func (l throughput) datagrams(ctx context.Context, n *network, fromGuest bool) (float64, error) {
	at := netip.AddrPortFrom(destination[0], serverPort)
	var far *net.UDPConn
	if err := netns.Do(n.far, func() (err error) { far, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)); return err }); err != nil {
		return 0, err
	}
	defer far.Close()
	var guest *net.UDPConn
	if err := netns.Do(n.guest, func() (err error) { guest, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at)); return err }); err != nil {
		return 0, err
	}
	defer guest.Close()
	client, err := meet(guest, far)
	if err != nil {
		return 0, err
	}
	receive, send := far.ReadFromUDPAddrPort, guest.Write
	if !fromGuest {
		receive = guest.ReadFromUDPAddrPort
		send = func(b []byte) (int, error) { return far.WriteToUDPAddrPort(b, client) }
	}
	var arrived atomic.Int64
	heard := make(chan struct{}, datagramWindow/datagramStep)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); guest.Close(); far.Close() }()
	running.Go(func() {
		alone()
		for data := make([]byte, 2048); ; {
			if _, _, err := receive(data); err != nil {
				return
			}
			if arrived.Add(1)%datagramStep == 0 {
				select {
				case heard <- struct{}{}:
				default:
				}
			}
		}
	})
	running.Go(func() {
		alone()
		data, free := make([]byte, datagramSize), datagramWindow
		lost := time.NewTicker(50 * time.Millisecond) // then what is on its way counts as lost
		defer lost.Stop()
		for {
			if free == 0 {
				lost.Reset(50 * time.Millisecond)
				select {
				case <-heard:
					free = datagramStep
				case <-lost.C:
					free = datagramWindow
				case <-ctx.Done():
					return
				}
			}
			if _, err := send(data); errors.Is(err, net.ErrClosed) {
				return
			}
			free--
		}
	})
	return l.rate(ctx, &arrived)
}

// meet sends from the guest to its server until that arrives, and returns the address from which. What is late from an earlier
// turn does not count.
func meet(guest, far *net.UDPConn) (client netip.AddrPort, err error) {
	mark, data := binary.BigEndian.AppendUint64(nil, rand.Uint64()), make([]byte, 2048)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err := guest.Write(mark); err != nil {
			return client, err
		}
		if err := far.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return client, err
		}
		for size := 0; err == nil; {
			if size, client, err = far.ReadFromUDPAddrPort(data); err == nil && bytes.Equal(data[:size], mark) {
				return client, far.SetReadDeadline(time.Time{})
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return client, err
		}
		err = nil
	}
	return client, errors.New("no datagram of the guest came in 20 s")
}
