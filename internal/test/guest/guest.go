// Package guest is a guest without a VM: a TCP/IP stack in user space on the guest's tap. DHCPv4, DHCPv6 and
// router advertisements configure the guest as they configure a VM's. It then sends and answers traffic.
//
// The guest installs exactly what it is told, so an error in a lease breaks its traffic, as in a real guest.
// Leases are renewed on request only, and an address stays after its lease has ended.
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

// ErrClosed is the error of an operation that ended because the guest was closed.
var ErrClosed = errors.New("guest closed")

// ErrRefused means that the server refused a lease, by DHCPNAK or by a DHCPv6 status other than success.
var ErrRefused = errors.New("lease refused")

// ErrDuplicate means that another station has the address.
var ErrDuplicate = errors.New("address in use by another station")

// nicID is the stack's only interface.
const nicID tcpip.NICID = 1

// probeWait is how long an address stays tentative. RFC 4862 section 5.1 and RFC 5227 section 1.1 wait a second
// or more, for links that are slower than a tap.
const probeWait = 100 * time.Millisecond

// Config is the guest's hardware and name.
type Config struct {
	// Port transfers one Ethernet frame per Read and Write, such as the file that tap.Open returns, or Queues. Close
	// must end a pending Read. After a successful Start the guest closes the port.
	Port io.ReadWriteCloser
	// MAC is the guest's Ethernet address.
	MAC cache.MAC
	// MTU is the MTU at the start, in octets of IP; 0: 1500. DHCPv4 can replace it, a router advertisement
	// can lower it.
	MTU int
	// Name is the guest's name in its answers on TCP ports; empty: guest.
	Name string
	// Received is called with each frame that the port has received, before the guest looks at it; nil: not called.
	// The frame is valid during the call.
	Received func(frame []byte)
	// Log receives problems of background goroutines; nil discards them.
	Log *slog.Logger
}

// Guest is a running guest. Its methods may be called from any goroutine, in any namespace.
type Guest struct {
	config Config
	log    *slog.Logger
	stack  *stack.Stack
	link   *link
	sctp   *handshake

	ctx    context.Context // done when the guest ends; the cause is the reason
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	dhcp4      sync.Mutex // one DHCPv4 exchange at a time
	dhcp6      sync.Mutex // one DHCPv6 exchange at a time
	installing sync.Mutex

	mu sync.Mutex
	state
}

// state is the guest's configuration. Guest.mu guards it.
type state struct {
	changed    chan struct{} // closed and replaced at every change
	generation int           // counts the changes
	bootReply  chan []byte   // of the open broadcast wire

	lease4   *Lease4
	lease6   *Lease6
	probed   map[netip.Addr]error // results of finished duplicate address detections
	offLink  []offLinkRoute
	onLink   []netip.Prefix
	ra       *Advertisement
	raNumber int
	raMTU    int // 0: none
}

// Start attaches a guest to a port. The guest configures its IPv6 link-local address and nothing else.
//
// The caller must call Close. After an error the caller closes the port.
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
			ipv4.NewProtocolWithOptions(ipv4.Options{IGMP: ipv4.IGMPOptions{Enabled: true}}),
			ipv6.NewProtocolWithOptions(ipv6.Options{
				NDPConfigs: ipv6.NDPConfigurations{
					// The method RouterSolicitation sends the solicitations.
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
			func(s *stack.Stack) stack.TransportProtocol {
				g.sctp = &handshake{guest: g, stack: s, asked: map[uint32]chan string{}}
				return g.sctp
			},
		},
	})
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	if err := g.stack.CreateNIC(nicID, g.link); err != nil {
		g.cancel(nil)
		g.stack.Destroy()
		return nil, fmt.Errorf("guest: network interface: %s", err)
	}
	g.installRoutes()
	g.tasks.Go(g.receive)
	g.tasks.Go(g.followRoutes)
	return g, nil
}

// Close ends all operations, resets the connections, closes the port and waits for all goroutines. A second
// Close returns the error of closing the port again.
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

// WriteFrame sends one Ethernet frame unchanged.
func (g *Guest) WriteFrame(frame []byte) error {
	return g.link.write(frame)
}

// Families are the IP versions that Configure configures.
type Families struct{ IPv4, IPv6 bool }

// Configuration is the result of Configure.
type Configuration struct {
	IPv4 *Lease4        // nil if not asked for
	IPv6 *Lease6        // nil if not asked for, or if RA does not have the guest use DHCPv6
	RA   *Advertisement // nil if IPv6 was not asked for
}

// Configure does what a guest does when its link comes up, for the wanted families at the same time: DHCPv4;
// a router solicitation and, if the advertisement has the managed flag, DHCPv6.
//
// The error is set if a wanted family fails; the result then has what succeeded.
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

// receive reads frames and passes each to the DHCPv4 wire or to the stack, until the port fails or is closed.
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
		if g.config.Received != nil {
			g.config.Received(frame)
		}
		if n < header.EthernetMinimumSize || !g.link.accepts(frame) || g.deliverBootReply(frame) {
			continue
		}
		g.link.deliver(frame)
		if ra := parseAdvertisement(frame); ra != nil {
			g.applyAdvertisement(ra)
		}
	}
}

// withGuestContext returns a context that ends with the guest or with ctx, with the same cause. Call the
// function to release the context.
func (g *Guest) withGuestContext(ctx context.Context) (context.Context, func()) {
	// The context is a child of the guest's context, so it is done before Close aborts connections. The
	// operation then returns the cause, not the stack's error.
	child, cancel := context.WithCancelCause(g.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return child, func() {
		stop()
		cancel(nil)
	}
}

// changeState calls f with the lock held, and wakes all waitUntil.
func (g *Guest) changeState(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.generation++
	close(g.changed)
	g.changed = make(chan struct{})
}

// waitUntil returns nil when ready returns true, or the cause when ctx is done. ready reads the state; the lock
// is held.
func (g *Guest) waitUntil(ctx context.Context, ready func() bool) error {
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
