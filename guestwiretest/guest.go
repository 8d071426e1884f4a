package guestwiretest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/phase2"
)

// Guest is a network namespace in the place of a VM, with the other end of the guest's tap as its network card. It has
// a link-local address and what DHCP and router advertisements give it, right or wrong, and answers pings, and at
// [Port]. Its methods may be called at the same time.
type Guest struct {
	stack    *guest.Guest
	families guest.Families
	close    func()

	mu       sync.Mutex
	captures []*Capture
}

// NewGuest attaches a guest to a record's tap until the test ends, as a VMM does (phase2.OpenTap). The launcher that is
// tested only has to serve. Without ip(8) the test is skipped.
func NewGuest(t testing.TB, pod *Pod, record cache.Record) *Guest {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		skip(t, "guest: "+err.Error())
	}
	var files []*os.File
	err := pod.Do(func() (err error) {
		files, err = phase2.OpenTap(record)
		return err
	})
	if err != nil {
		t.Fatalf("guest: %v", err)
	}
	g := &Guest{families: guest.Families{IPv4: record.IPv4 != nil, IPv6: record.IPv6 != nil}}
	port := guest.Queues(files)
	g.stack, err = guest.Start(guest.Config{Port: port, MAC: record.MAC, Received: g.received})
	if err != nil {
		port.Close()
		t.Fatal(err)
	}
	g.close = sync.OnceFunc(func() {
		if err := g.stack.Close(); err != nil {
			t.Error(err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, c := range g.captures {
			c.end(guest.ErrClosed)
		}
	})
	t.Cleanup(g.close)
	if err := g.stack.ListenTCP(Port); err != nil {
		t.Fatal(err)
	}
	return g
}

// Close ends the guest before the test does, as if the VM were destroyed.
func (g *Guest) Close() { g.close() }

// Lease is what a DHCP server has given.
type Lease struct {
	Address  netip.Prefix // DHCPv6 gives a /128
	DNS      []netip.Addr
	Search   []string
	MTU      int           // option 26 of DHCPv4; 0: there was none
	Duration time.Duration // 4294967295 s means for ever
	Message  []byte        // the whole DHCPACK or Reply
}

// Configure does what a guest does at its start: DHCP and router solicitation, in the record's families.
func (g *Guest) Configure(ctx context.Context) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	_, err := g.stack.Configure(ctx, g.families)
	return err
}

// DHCPv4 gets a lease, and uses its address, routes and MTU.
func (g *Guest) DHCPv4(ctx context.Context) (Lease, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	l, err := g.stack.DHCPv4(ctx)
	if l == nil {
		return Lease{}, err
	}
	return Lease{l.Address, l.DNS, l.Search, l.MTU, l.Duration, l.Message.ToBytes()}, err
}

// DHCPv6 gets a lease, and uses its address.
func (g *Guest) DHCPv6(ctx context.Context) (Lease, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	l, err := g.stack.DHCPv6(ctx, false)
	if l == nil {
		return Lease{}, err
	}
	return Lease{netip.PrefixFrom(l.Address, 128), l.DNS, l.Search, 0, l.Valid, l.Message.ToBytes()}, err
}

// RouterSolicitation asks for a router advertisement, uses it, and returns its source.
func (g *Guest) RouterSolicitation(ctx context.Context) (netip.Addr, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	ra, err := g.stack.RouterSolicitation(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	return ra.Source, nil
}

// Addresses returns the guest's addresses, sorted.
func (g *Guest) Addresses() []netip.Prefix { return g.stack.Addresses() }

// Routes returns the guest's routes as ip-route(8) prints them.
func (g *Guest) Routes() []string {
	var routes []string
	for _, r := range g.stack.Routes() {
		routes = append(routes, r.String())
	}
	return routes
}

// Ping sends an ICMP echo request each second until one is answered.
func (g *Guest) Ping(ctx context.Context, to netip.Addr) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	_, err := g.stack.Ping(ctx, to)
	return err
}

// DialTCP connects from the guest.
func (g *Guest) DialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	return g.stack.DialTCP(ctx, to)
}

// Ask connects from the guest, and returns the line that the other side sends, see [Port].
func (g *Guest) Ask(ctx context.Context, to netip.AddrPort) (string, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	c, err := g.DialTCP(ctx, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return lab.ReadAnswer(ctx, c)
}

// Send sends an Ethernet frame as it is.
func (g *Guest) Send(frame []byte) error { return g.stack.WriteFrame(frame) }

// Capture begins to collect the frames that come to the guest.
func (g *Guest) Capture() *Capture {
	c := newCapture()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.captures = append(g.captures, c)
	return c
}

func (g *Guest) received(frame []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.captures {
		c.add(frame)
	}
}
