package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/phase1"
)

// limited is how a Spec's limits are measured.
type limited struct {
	bits, packets uint64        // the limits, a second
	warm, counted time.Duration // until the bucket is empty; during which is counted
}

// passed is what came through a limit, as its share of the limit.
type passed struct {
	name  string
	share float64
}

// The share of a limit that is to pass.
const leastShare, mostShare = 0.9, 1.1

// printLimits prints what passes limits, by TCP with one connection and with four, and by UDP. The guest is a namespace
// with Linux's TCP, behind taps with offloads, so that segments of 64 KiB come to the limits.
func printLimits(ctx context.Context, w io.Writer, l limited) error {
	fmt.Fprintf(w, "Limits of %.1f Mbit/s and %d packets/s: what the receiver's program gets, as a share of the limit; of TCP without headers.\n"+
		"Linux %s, %d CPUs, %s; %v after a first %v.\n\n", float64(l.bits)/1e6, l.packets, release(), runtime.NumCPU(), runtime.Version(), l.counted, l.warm)
	list, err := measureLimits(ctx, l)
	for _, p := range list {
		met := "met"
		if p.share < leastShare || p.share > mostShare {
			met = "NOT met"
		}
		fmt.Fprintf(w, "  %-46s %6.3f   target %.2f to %.2f: %s\n", p.name, p.share, leastShare, mostShare, met)
	}
	fmt.Fprintln(w)
	return err
}

// measureLimits measures all bindings.
func measureLimits(ctx context.Context, l limited) (list []passed, err error) {
	if l.bits == 0 || l.packets == 0 || l.counted <= 0 {
		return nil, errors.New("the limits: want rates and a time above 0")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, errors.New("ip is missing: make install, or install it")
	}
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}} {
		more, err := l.measure(ctx, binding)
		if list = append(list, more...); err != nil {
			return list, fmt.Errorf("%s: %w", binding.Kind(), err)
		}
	}
	return list, nil
}

// measure measures one binding.
func (l limited) measure(ctx context.Context, binding infra.Binding) (list []passed, err error) {
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := newPod(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closePods([]*pod{p})) }()
	// The world's end has the addresses and the MAC that the pod knows of its gateways.
	if err := ip(ctx, fmt.Sprintf("link set %[1]s address %[2]v\naddr add %[3]v/24 dev %[1]s\naddr add %[4]v/64 dev %[1]s nodad\n", p.peer, nextHop, destination[0], destination[1]), "-n", "world"); err != nil {
		return nil, err
	}
	if err := p.waitSettled(ctx); err != nil {
		return nil, err
	}
	config := phase1.Config{NetNS: p.file, Dir: p.node(), Spec: infra.Spec{NIC: nic, Binding: binding, State: p.state}}
	record, err := phase1.Setup(ctx, config)
	if err != nil {
		return nil, err
	}
	guest, err := newTapGuest(ctx, p, record)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, guest.close()) }()
	world, err := os.Open(namespacePath("world"))
	if err != nil {
		return nil, err
	}
	defer world.Close()

	out := path{from: guest.file, to: world, at: netip.AddrPortFrom(destination[0], serverPort), dial: netip.AddrPortFrom(destination[0], serverPort)}
	in := path{from: world, to: guest.file, at: netip.AddrPortFrom(record.IPv4.Address.Addr(), serverPort), dial: netip.AddrPortFrom(guestIPv4Pod, serverPort)}
	octets, packets := cache.Limit{BitsPerSecond: l.bits}, cache.Limit{PacketsPerSecond: l.packets}
	for _, way := range []struct {
		name   string
		path   path
		limits func(cache.Limit) cache.Limits
	}{
		{"from the guest", out, func(l cache.Limit) cache.Limits { return cache.Limits{FromGuest: l} }},
		{"to the guest", in, func(l cache.Limit) cache.Limits { return cache.Limits{ToGuest: l} }},
	} {
		for _, kind := range []struct {
			name  string
			limit cache.Limit
			run   func(context.Context, path) (float64, error)
			most  uint64
		}{
			{"TCP, 1 connection", octets, func(ctx context.Context, p path) (float64, error) { return l.tcp(ctx, p, 1) }, l.bits},
			{"TCP, 4 connections", octets, func(ctx context.Context, p path) (float64, error) { return l.tcp(ctx, p, 4) }, l.bits},
			{"UDP, octets", octets, func(ctx context.Context, p path) (float64, error) {
				return l.udp(ctx, p, fullDatagram, l.bits/8/fullPacket)
			}, l.bits / 8 / fullPacket},
			{"UDP, packets", packets, func(ctx context.Context, p path) (float64, error) { return l.udp(ctx, p, 64, l.packets) }, l.packets},
		} {
			config.Limits = way.limits(kind.limit)
			if _, err := phase1.Setup(ctx, config); err != nil {
				return nil, err
			}
			got, err := kind.run(ctx, way.path)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", way.name, kind.name, err)
			}
			list = append(list, passed{fmt.Sprintf("%s, %s, %s", binding.Kind(), way.name, kind.name), got / float64(kind.most)})
		}
	}
	return list, nil
}

// A datagram that fills a packet, and the packet.
const fullDatagram, fullPacket = 1500 - 28, 1500

// guestIPv4Pod is the address of podNIC.
var guestIPv4Pod = netip.MustParseAddr("10.244.1.7")

// path is a sender, and a receiver with its address, as it is and as the sender knows it.
type path struct {
	from, to *os.File
	at, dial netip.AddrPort
}

// rate counts for the given time, after the first, and returns the count's growth a second.
func (l limited) rate(ctx context.Context, count *atomic.Int64) (float64, error) {
	if err := sleep(ctx, l.warm); err != nil {
		return 0, err
	}
	had, begin := count.Load(), time.Now()
	if err := sleep(ctx, l.counted); err != nil {
		return 0, err
	}
	return float64(count.Load()-had) / time.Since(begin).Seconds(), nil
}

// tcp returns the bits a second that so many connections bring together.
func (l limited) tcp(ctx context.Context, p path, connections int) (bits float64, err error) {
	var listener net.Listener
	if err := netns.Do(p.to, func() (err error) {
		listener, err = net.Listen("tcp", p.at.String())
		return err
	}); err != nil {
		return 0, err
	}
	var octets atomic.Int64
	var running sync.WaitGroup
	var open []net.Conn
	defer func() {
		listener.Close()
		for _, c := range open {
			_ = c.(*net.TCPConn).SetLinger(0) // what is on its way does not count any more
			c.Close()
		}
		running.Wait()
	}()
	for range connections {
		var conn net.Conn
		if err := netns.Do(p.from, func() (err error) {
			conn, err = net.DialTimeout("tcp", p.dial.String(), 20*time.Second)
			return err
		}); err != nil {
			return 0, err
		}
		open = append(open, conn)
		far, err := listener.Accept()
		if err != nil {
			return 0, err
		}
		open = append(open, far)
		running.Go(func() { _, _ = io.Copy(counter{&octets}, far) }) // ends when the connections are closed
		running.Go(func() {
			data := make([]byte, 1<<18)
			for {
				if _, err := conn.Write(data); err != nil {
					return
				}
			}
		})
	}
	perSecond, err := l.rate(ctx, &octets)
	return 8 * perSecond, err
}

// counter counts what is written to it.
type counter struct{ *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
}

// udp sends datagrams at four times the rate and returns how many arrive a second.
func (l limited) udp(ctx context.Context, p path, size int, rate uint64) (float64, error) {
	var far net.PacketConn
	if err := netns.Do(p.to, func() (err error) {
		far, err = net.ListenPacket("udp", p.at.String())
		return err
	}); err != nil {
		return 0, err
	}
	if err := roomy(far.(*net.UDPConn)); err != nil {
		far.Close()
		return 0, err
	}
	var conn net.Conn
	if err := netns.Do(p.from, func() (err error) {
		conn, err = net.Dial("udp", p.dial.String())
		return err
	}); err != nil {
		far.Close()
		return 0, err
	}
	var datagrams atomic.Int64
	var running sync.WaitGroup
	defer func() {
		far.Close()
		conn.Close()
		running.Wait()
	}()
	running.Go(func() {
		buffer := make([]byte, 2048)
		for {
			if _, _, err := far.ReadFrom(buffer); err != nil {
				return
			}
			datagrams.Add(1)
		}
	})
	running.Go(func() {
		data, begin := make([]byte, size), time.Now()
		for sent := 0; ; {
			for due := int(time.Since(begin).Seconds() * 4 * float64(rate)); sent < due; sent++ {
				if _, err := conn.Write(data); errors.Is(err, net.ErrClosed) {
					return
				}
			}
			if sleep(ctx, time.Millisecond) != nil {
				return
			}
		}
	})
	return l.rate(ctx, &datagrams)
}

// roomy gives the socket room for a second of datagrams: what a busy receiver loses would look like the limit's doing.
func roomy(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	const octets = 64 << 20
	controlled := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, octets) })
	return errors.Join(controlled, os.NewSyscallError("setsockopt SO_RCVBUFFORCE", err))
}

// tapGuest is a namespace whose tap is connected to that of a record.
type tapGuest struct {
	name            string
	file            *os.File
	inside, outside *os.File
	forwarding      sync.WaitGroup
	failed          [2]error
}

func newTapGuest(ctx context.Context, p *pod, r cache.Record) (g *tapGuest, err error) {
	g = &tapGuest{name: "guest-" + p.name}
	if g.file, err = newNamespace(ctx, g.name); err != nil {
		return nil, err
	}
	if err := ip(ctx, "tuntap add eth0 mode tap vnet_hdr\nlink set eth0 address "+r.MAC.String()+"\n", "-n", g.name); err != nil {
		return nil, errors.Join(err, g.close())
	}
	for _, end := range []struct {
		file **os.File
		in   *os.File
		name string
	}{{&g.inside, g.file, "eth0"}, {&g.outside, p.file, r.Tap}} {
		fd, err := openTap(end.in, end.name)
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		*end.file = os.NewFile(uintptr(fd), end.name)
	}
	g.forwarding.Go(func() { g.failed[0] = copyFrames(g.outside, g.inside) })
	g.forwarding.Go(func() { g.failed[1] = copyFrames(g.inside, g.outside) })
	if err := ip(ctx, fmt.Sprintf("link set lo up\nlink set eth0 mtu %d up\naddr add %v dev eth0\nroute add default via %v dev eth0 onlink\n",
		r.MTU, r.IPv4.Address, r.IPv4.Gateway()), "-n", g.name); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// copyFrames copies frames with their headers until a tap is closed. A frame for a link that is down is lost, as on a wire.
func copyFrames(to, from *os.File) error {
	alone()
	frame := make([]byte, 1<<17)
	for {
		size, err := from.Read(frame)
		if err == nil {
			_, err = to.Write(frame[:size])
		}
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil && !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("copy from tap %s to %s: %w", from.Name(), to.Name(), err)
		}
	}
}

func (g *tapGuest) close() error {
	for _, f := range []*os.File{g.inside, g.outside, g.file} {
		if f != nil {
			f.Close()
		}
	}
	g.forwarding.Wait()
	return errors.Join(g.failed[0], g.failed[1], ip(context.Background(), "netns del "+g.name+"\n"))
}
