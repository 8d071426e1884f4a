package guest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
)

// solicitWait is RTR_SOLICITATION_INTERVAL, the first wait of RFC 7559 section 2. It doubles each time.
const solicitWait = 4 * time.Second

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
