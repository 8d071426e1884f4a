// Package guest is a guest without a VM: a network namespace with a network card, whose frames are those of the guest's
// tap. DHCPv4, DHCPv6 and router advertisements configure the guest as they configure a VM's. It then sends and answers
// traffic by its kernel.
//
// The guest uses exactly what it gets, so an error in a lease breaks its traffic, as in a real guest.
// Leases are renewed on request only, and an address stays after its lease has ended. The guest does not look for
// duplicates of its addresses: package lab's namespaces have that off.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/lab"
)

// ErrClosed is the error of an operation that ended because the guest was closed.
var ErrClosed = errors.New("guest closed")

// NIC is the guest's network card.
const NIC = "eth0"

// Config is the guest's hardware and name.
type Config struct {
	// Port transfers one Ethernet frame per Read and Write, such as the file that tap.Open returns, or Queues. Close
	// must end a pending Read. After a successful Start the guest closes the port.
	Port io.ReadWriteCloser
	// MAC is the guest's Ethernet address.
	MAC cache.MAC
	// Name is the guest's name in its answers on TCP ports; empty: guest.
	Name string
	// Received is called with each frame that the port has received, before the guest looks at it; nil: not called.
	// The frame is valid during the call.
	Received func(frame []byte)
}

// Guest is a running guest, whose namespace it is. Its methods may be called from any goroutine, in any namespace.
type Guest struct {
	lab.Namespace
	config Config
	card   *os.File // the outer end of the NIC
	// zone is the NIC's number. A name would be another link's: package net notes the numbers of names without their
	// namespace.
	zone string

	ctx    context.Context // done when the guest ends; the cause is the reason
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	mu         sync.Mutex // guards the rest
	answers    []*lab.Answers
	lease4     *Lease4
	lease6     *Lease6
	advertised chan *Advertisement // of the RouterSolicitation that waits
}

// Start attaches a guest to a port. The guest has its IPv6 link-local address then, and nothing else. Start needs
// ip(8), and CAP_NET_ADMIN.
//
// The caller must call Close. After an error the caller closes the port.
func Start(c Config) (*Guest, error) {
	if !c.MAC.Unicast() {
		return nil, fmt.Errorf("guest: MAC %v is no station's address", c.MAC)
	}
	if c.Name == "" {
		c.Name = "guest"
	}
	namespace, err := lab.New()
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	g := &Guest{Namespace: namespace, config: c}
	if err := g.plug(); err != nil {
		if g.card != nil {
			g.card.Close()
		}
		g.File.Close()
		return nil, fmt.Errorf("guest: network card: %w", err)
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.tasks.Go(g.send)
	g.tasks.Go(g.receive)
	return g, nil
}

// sysctls are those of a guest that solicits routers by RouterSolicitation alone, uses the routes that they advertise
// (RFC 4191), and answers with each ICMP error.
var sysctls = map[string]string{
	"ipv6/conf/" + NIC + "/router_solicitations":       "0",
	"ipv6/conf/" + NIC + "/accept_ra_rt_info_max_plen": "128",
	"ipv4/icmp_ratelimit":                              "0",
	"ipv6/icmp/ratelimit":                              "0",
}

// plug makes the network card, and waits for its link-local address.
func (g *Guest) plug() error {
	if err := g.ip("tuntap add " + NIC + " mode tap"); err != nil {
		return err
	}
	if err := g.ip("link set " + NIC + " address " + g.config.MAC.String()); err != nil {
		return err
	}
	err := g.Do(func() (err error) {
		for name, value := range sysctls {
			err = errors.Join(err, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0))
		}
		if err != nil {
			return err
		}
		link, err := net.InterfaceByName(NIC)
		if err != nil {
			return err
		}
		g.zone = strconv.Itoa(link.Index)
		g.card, err = tap.Open(NIC)
		return err
	})
	if err != nil {
		return err
	}
	if err := g.ip("link set " + NIC + " up"); err != nil {
		return err
	}
	return g.Settle(NIC)
}

// ip runs ip(8) in the guest, with a line of words.
func (g *Guest) ip(line string) error {
	_, err := g.Run("ip", strings.Fields(line)...)
	return err
}

// Close ends all operations, closes the port and waits for all goroutines. Nothing is sent to the guest's peers, as if
// its machine had lost its power. A second Close returns the error of closing the port again.
func (g *Guest) Close() error {
	g.cancel(ErrClosed)
	err := g.config.Port.Close()
	g.card.Close()
	g.tasks.Wait()
	lab.AwaitForks()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.answers {
		a.Close()
	}
	g.answers = nil
	g.File.Close()
	if err != nil {
		return fmt.Errorf("guest: close port: %w", err)
	}
	return nil
}

// WriteFrame sends one Ethernet frame unchanged.
func (g *Guest) WriteFrame(frame []byte) error {
	_, err := g.config.Port.Write(frame)
	return err
}

// send passes the guest's frames to the port, until one of both is closed.
func (g *Guest) send() {
	buffer := make([]byte, maxFrame)
	for {
		n, err := g.card.Read(buffer)
		if err != nil {
			return
		}
		// A frame for a link that is down is lost.
		if err := g.WriteFrame(buffer[:n]); err != nil && !errors.Is(err, unix.EIO) {
			g.fail(err)
			return
		}
	}
}

// receive passes the port's frames to the guest, until one of both is closed. The kernel has dealt with a frame when
// Write returns, so an advertisement is in use when it is reported.
func (g *Guest) receive() {
	buffer := make([]byte, maxFrame)
	for {
		n, err := g.config.Port.Read(buffer)
		if err != nil {
			g.fail(err)
			return
		}
		frame := buffer[:n]
		if g.config.Received != nil {
			g.config.Received(frame)
		}
		if _, err := g.card.Write(frame); err != nil {
			g.fail(err)
			return
		}
		if ra := parseAdvertisement(frame); ra != nil {
			g.report(ra)
		}
	}
}

// report passes an advertisement to the RouterSolicitation that waits.
func (g *Guest) report(ra *Advertisement) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case g.advertised <- ra: // nil: none waits
	default:
	}
}

// fail ends the operations of a guest whose port has ended.
func (g *Guest) fail(err error) { g.cancel(fmt.Errorf("guest: port: %w", err)) }

// withGuestContext returns a context that ends with the guest or with ctx, with the same cause. Call the
// function to release the context.
func (g *Guest) withGuestContext(ctx context.Context) (context.Context, func()) {
	child, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.ctx, func() { cancel(context.Cause(g.ctx)) })
	return child, func() {
		stop()
		cancel(nil)
	}
}

// because returns the cause of the context's end, if it has ended, instead of what an operation made of it.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// AddAddress gives the guest an address and the route to its network, as an administrator does.
func (g *Guest) AddAddress(p netip.Prefix) error {
	return g.ip("addr replace " + p.String() + " dev " + NIC + " nodad")
}
