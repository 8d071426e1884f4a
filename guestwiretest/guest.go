package guestwiretest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/guest"
	"github.com/guestwire/guestwire/internal/lab"
	"github.com/guestwire/guestwire/phase2"
)

// Errors of leases to tell apart.
var (
	// ErrRefused: the server refused, by DHCPNAK or by a DHCPv6 status other than success.
	ErrRefused = guest.ErrRefused
	// ErrDuplicate: another station has the address.
	ErrDuplicate = guest.ErrDuplicate
)

// Guest is a guest without a VM: a TCP/IP stack in the test process, on the guest's tap. DHCP and router advertisements
// configure it as they configure a VM, so an error in a lease breaks its traffic. It has nothing but its link-local
// address until then. It answers at Port, and pings.
//
// The methods may be called from any goroutine.
type Guest struct {
	stack    *guest.Guest
	families guest.Families
	close    func()

	mu       sync.Mutex
	captures []*Capture
}

// NewGuest attaches a guest to the tap of a record of the pod, with the record's MAC and queues, as a VMM does: by
// [phase2.OpenTap]. The guest ends with the test.
func NewGuest(t testing.TB, pod *Pod, record cache.Record) *Guest {
	t.Helper()
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
	// Address has the prefix length of the subnet mask; by DHCPv6 it is a /128.
	Address netip.Prefix
	DNS     []netip.Addr
	Search  []string
	// MTU is DHCPv4's option 26; 0: none.
	MTU int
	// Duration is how long the address is valid; 4294967295 s is for ever.
	Duration time.Duration
	// Message is the whole DHCPACK or Reply, as received.
	Message []byte
}

// Configure does what a guest does when its link comes up, for the families of the record at the same time: DHCPv4; a
// router solicitation and, if the advertisement says so, DHCPv6.
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

// DHCPv6 gets a lease, and uses its address. Routes come by RouterSolicitation.
func (g *Guest) DHCPv6(ctx context.Context) (Lease, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	l, err := g.stack.DHCPv6(ctx, false)
	if l == nil {
		return Lease{}, err
	}
	return Lease{netip.PrefixFrom(l.Address, 128), l.DNS, l.Search, 0, l.Valid, l.Message.ToBytes()}, err
}

// Advertisement is what a router has told.
type Advertisement struct {
	// Router is the link-local address of the router.
	Router netip.Addr
	// Lifetime is how long the router is a default gateway; 0: it is none.
	Lifetime time.Duration
	// Managed: the guest gets its address by DHCPv6.
	Managed bool
}

// RouterSolicitation asks for a router advertisement, and uses its routes, prefixes and MTU.
func (g *Guest) RouterSolicitation(ctx context.Context) (Advertisement, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	ra, err := g.stack.RouterSolicitation(ctx)
	if err != nil {
		return Advertisement{}, err
	}
	return Advertisement{ra.Source, ra.RouterLifetime, ra.ManagedConfiguration}, nil
}

// Addresses returns the guest's addresses, sorted.
func (g *Guest) Addresses() []netip.Prefix { return g.stack.Addresses() }

// Routes returns the guest's routes as ip-route(8) prints them, without the device: "default via 10.244.1.1".
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

// Ask connects from the guest, and returns the line of the station that answers: see [Port].
func (g *Guest) Ask(ctx context.Context, to netip.AddrPort) (string, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	c, err := g.stack.DialTCP(ctx, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return lab.ReadAnswer(ctx, c)
}

// Send sends an Ethernet frame as it is, whatever the guest's configuration.
func (g *Guest) Send(frame []byte) error { return g.stack.WriteFrame(frame) }

// Capture notes the frames that come to the guest from now on.
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
