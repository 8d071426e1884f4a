// Package guest is a machine on a tap without a machine: a TCP/IP stack in user space that attaches
// to the guest's tap, is configured by DHCPv4, DHCPv6 and router advertisements like the guest of a
// VM, and then sends and answers traffic.
//
// It installs what it was told and nothing else, so a fault in a lease breaks its traffic as it
// would break a real guest's. Leases are renewed on request only, and an address does not go away
// when its lease ends.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/guestwire/guestwire/cache"
)

// ErrClosed is the cause when an operation ends because the guest was closed.
var ErrClosed = errors.New("guest closed")

// ErrRefused is wrapped by the error of a lease that the server refused: DHCPNAK, or a DHCPv6
// status other than success.
var ErrRefused = errors.New("lease refused")

// ErrDuplicate is wrapped by the error of an address that another station answers for.
var ErrDuplicate = errors.New("address in use by another station")

// nicID is the stack's only interface.
const nicID tcpip.NICID = 1

// probeWait is how long an address stays tentative. RFC 4862 section 5.1 and RFC 5227 section 1.1
// have a second and more, for links with more than one cable.
const probeWait = 100 * time.Millisecond

// Config is what the hardware of the guest would be.
type Config struct {
	// Port carries one Ethernet frame a Read and a Write, such as the file that tap.Open returns.
	// The guest owns it from Start on. A Close has to end a pending Read.
	Port io.ReadWriteCloser
	// MAC is the guest's Ethernet address.
	MAC cache.MAC
	// MTU is what the guest starts with, in octets of IP; 0: 1500. DHCPv4 can replace it, a
	// router advertisement can lower it.
	MTU int
	// Name is how the guest introduces itself on its TCP ports; empty: guest.
	Name string
	// Log is told what has no caller; nil discards.
	Log *slog.Logger
}

// Guest is a running guest. Its methods may be called from any goroutine, in any namespace.
type Guest struct {
	config Config
	log    *slog.Logger
	stack  *stack.Stack
	link   *link

	ctx    context.Context // done when the guest is; its cause says why
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	dhcp4      sync.Mutex // one DHCPv4 exchange at a time
	dhcp6      sync.Mutex // one DHCPv6 exchange at a time
	installing sync.Mutex

	mu sync.Mutex
	state
}

// state is what the guest was told. Guest.mu guards it.
type state struct {
	changed    chan struct{} // closed and replaced at every change
	generation int           // counts the changes
	bootReply  chan []byte   // where DHCPv4 messages go while the guest has no address to receive them

	lease4   *Lease4
	lease6   *Lease6
	probed   map[netip.Addr]error // IPv6 addresses whose duplicate address detection is over
	offLink  []offLinkRoute
	onLink   []netip.Prefix
	ra       *Advertisement
	raNumber int
	raMTU    int // 0: none
}

// Start attaches a guest to a port. The guest gives itself its IPv6 link-local address and waits.
//
// The caller closes the guest. On error the port stays the caller's.
func Start(c Config) (*Guest, error) {
	if c.Port == nil {
		return nil, errors.New("guest: no port")
	}
	if !c.MAC.Unicast() {
		return nil, fmt.Errorf("guest: MAC %v is no station's address", c.MAC)
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	if c.MTU < cache.MinMTU || c.MTU > cache.MaxMTU {
		return nil, fmt.Errorf("guest: MTU %d, want %d to %d", c.MTU, cache.MinMTU, cache.MaxMTU)
	}
	if c.Name == "" {
		c.Name = "guest"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	g := &Guest{
		config: c,
		log:    c.Log,
		link:   &link{port: c.Port, mac: c.MAC, mtu: uint32(c.MTU), log: c.Log},
		state:  state{changed: make(chan struct{}), probed: map[netip.Addr]error{}},
	}
	probe := stack.DADConfigurations{DupAddrDetectTransmits: 1, RetransmitTimer: probeWait}
	g.stack = stack.New(stack.Options{
		HandleLocal: true,
		NetworkProtocols: []stack.NetworkProtocolFactory{
			arp.NewProtocolWithOptions(arp.Options{DADConfigs: probe}),
			ipv4.NewProtocol,
			ipv6.NewProtocolWithOptions(ipv6.Options{
				NDPConfigs: ipv6.NDPConfigurations{
					// Router solicitations are RouterSolicitation's.
					HandleRAs:                  ipv6.HandlingRAsAlwaysEnabled,
					DiscoverDefaultRouters:     true,
					DiscoverMoreSpecificRoutes: true,
					DiscoverOnLinkPrefixes:     true,
					AutoGenGlobalAddresses:     true,
				},
				AutoGenLinkLocal: true,
				NDPDisp:          (*discovery)(g),
				MLD:              ipv6.MLDOptions{Enabled: true},
				DADConfigs:       probe,
			}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{
			icmp.NewProtocol4, icmp.NewProtocol6, tcp.NewProtocol, udp.NewProtocol,
		},
	})
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	if err := g.stack.CreateNIC(nicID, g.link); err != nil {
		g.cancel(nil)
		g.stack.Destroy()
		return nil, fmt.Errorf("guest: network interface: %s", err)
	}
	g.install()
	g.tasks.Go(g.receive)
	g.tasks.Go(g.followRoutes)
	return g, nil
}

// Close ends everything the guest does, resets its connections, closes the port and returns when
// no goroutine is left. A second Close returns what closing the port again returns.
func (g *Guest) Close() error {
	g.cancel(ErrClosed)
	for _, e := range g.stack.RegisteredEndpoints() {
		e.Abort() // while the reset can still be sent
	}
	err := g.config.Port.Close()
	g.tasks.Wait()
	g.stack.Destroy()
	if err != nil {
		return fmt.Errorf("guest: close port: %w", err)
	}
	return nil
}

// WriteFrame sends one Ethernet frame as it is.
func (g *Guest) WriteFrame(frame []byte) error {
	return g.link.write(frame)
}

// Families are the IP versions a guest is to use.
type Families struct{ IPv4, IPv6 bool }

// Configuration is what Configure got.
type Configuration struct {
	IPv4 *Lease4        // nil if not asked for
	IPv6 *Lease6        // nil if not asked for, or if RA does not have the guest use DHCPv6
	RA   *Advertisement // nil if IPv6 was not asked for
}

// Configure does what a guest does when its link comes up, for both families at once: DHCPv4; a
// router solicitation and, if the advertisement says that addresses are managed, DHCPv6.
//
// A family that is asked for has to come, the other one is left alone. What came is returned with
// the error as well.
func (g *Guest) Configure(ctx context.Context, families Families) (Configuration, error) {
	var (
		c          Configuration
		err4, err6 error
		both       sync.WaitGroup
	)
	if families.IPv4 {
		both.Go(func() { c.IPv4, err4 = g.DHCPv4(ctx) })
	}
	if families.IPv6 {
		both.Go(func() {
			c.RA, err6 = g.RouterSolicitation(ctx)
			if err6 == nil && c.RA.ManagedConfiguration {
				c.IPv6, err6 = g.DHCPv6(ctx, false)
			}
		})
	}
	both.Wait()
	return c, errors.Join(err4, err6)
}

// receive hands every frame to whom it is for, until the port ends.
func (g *Guest) receive() {
	buffer := make([]byte, 1<<16) // a tap's frame is at most 65535 octets
	for {
		n, err := g.config.Port.Read(buffer)
		if err != nil {
			if g.ctx.Err() == nil {
				g.log.Error("guest's port ended", "err", err)
				g.cancel(fmt.Errorf("guest: port: %w", err))
			}
			return
		}
		frame := buffer[:n]
		if n < header.EthernetMinimumSize || !g.link.wants(frame) || g.takeBootReply(frame) {
			continue
		}
		g.link.deliver(frame)
		if ra := parseAdvertisement(frame); ra != nil {
			g.advertised(ra)
		}
	}
}

// bound returns a context that ends with the guest and with ctx, whose cause is its own then. The
// function frees it.
func (g *Guest) bound(ctx context.Context) (context.Context, func()) {
	// A child of the guest's context: it is done before Close aborts what the operation uses, so
	// the error is the cause and not what the stack makes of it.
	child, cancel := context.WithCancelCause(g.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return child, func() {
		stop()
		cancel(nil)
	}
}

// change has f change the state, and wakes whoever awaits.
func (g *Guest) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.generation++
	close(g.changed)
	g.changed = make(chan struct{})
}

// await returns when ready does with true, or with the cause when ctx is done. ready looks at the
// state.
func (g *Guest) await(ctx context.Context, ready func() bool) error {
	for {
		g.mu.Lock()
		ok, changed := ready(), g.changed
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
