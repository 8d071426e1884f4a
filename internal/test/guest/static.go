package guest

import (
	"context"
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// AddAddress gives the guest an address and the route to its network, as an administrator does. It returns when an IPv6
// address has gone through duplicate address detection; the error is ErrDuplicate if another station has the address.
func (g *Guest) AddAddress(ctx context.Context, p netip.Prefix) error {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	a := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: withPrefix(p)}
	if p.Addr().Is6() {
		a.Protocol = ipv6.ProtocolNumber
	}
	if err := g.stack.AddProtocolAddress(nicID, a, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("address %v: %s", p, err)
	}
	g.changeState(func() { g.onLink = append(g.onLink, p.Masked()) })
	g.installRoutes()
	if p.Addr().Is4() {
		return nil
	}
	return g.waitForProbe(ctx, p.Addr())
}
