package guest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"
)

// solicitWait is RTR_SOLICITATION_INTERVAL, the first wait of RFC 7559 section 2. It doubles each time.
const solicitWait = 4 * time.Second

// Advertisement is a router advertisement that the guest received.
type Advertisement struct {
	// Source is the router's link-local address.
	Source netip.Addr
	*ndp.RouterAdvertisement
}

// RouterSolicitation sends a router solicitation from the link-local address and returns the next router
// advertisement, solicited or not. The advertisement's default route, on-link prefixes, further routes, MTU and
// autonomous prefixes are in use then.
//
// RFC 4861 section 6.3.7, RFC 7559.
func (g *Guest) RouterSolicitation(ctx context.Context) (*Advertisement, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	ra, err := g.solicit(ctx)
	if err = because(ctx, err); err != nil {
		return nil, fmt.Errorf("router solicitation: no advertisement: %w", err)
	}
	return ra, nil
}

func (g *Guest) solicit(ctx context.Context) (*Advertisement, error) {
	var conn *ndp.Conn
	err := g.Do(func() error {
		link, err := net.InterfaceByName(NIC)
		if err == nil {
			link.Name = g.zone
			conn, _, err = ndp.Listen(link, ndp.LinkLocal)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	advertised := make(chan *Advertisement, 1)
	g.mu.Lock()
	g.advertised = advertised
	g.mu.Unlock()
	mac := g.config.MAC
	message := &ndp.RouterSolicitation{Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac[:]}}}
	for wait := solicitWait; ; wait *= 2 {
		if err := conn.WriteTo(message, nil, netip.MustParseAddr("ff02::2")); err != nil {
			return nil, err
		}
		select {
		case ra := <-advertised:
			return ra, nil
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
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

// parseAdvertisement returns nil if the frame is not a router advertisement. What the kernel also refuses (RFC 4861
// section 6.1.2) has no effect, which the tests' traffic shows.
func parseAdvertisement(frame []byte) *Advertisement {
	const source, message = 14 + 8, 14 + 40 // offsets
	if len(frame) <= message || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IPV6 || frame[14+6] != unix.IPPROTO_ICMPV6 {
		return nil
	}
	parsed, err := ndp.ParseMessage(frame[message:])
	if err != nil {
		return nil
	}
	ra, ok := parsed.(*ndp.RouterAdvertisement)
	if !ok {
		return nil
	}
	return &Advertisement{Source: netip.AddrFrom16([16]byte(frame[source:])), RouterAdvertisement: ra}
}
