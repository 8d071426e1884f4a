package lease

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// lose adds a loss to the record.
func lose(r *cache.Record, kind, what, why string, args ...any) {
	r.Losses = append(r.Losses, cache.Finding{Kind: kind, What: what, Why: fmt.Sprintf(why, args...)})
}

// loseGateway adds a next hop whose MAC is not known.
func loseGateway(r *cache.Record, gateway netip.Addr, v ip.Version) {
	if l := len(r.Losses); l > 0 && r.Losses[l-1].What == gateway.String() {
		return // another route by way of it
	}
	lose(r, "gateway", gateway.String(), "it does not answer, or was not asked, as on standby, so its MAC is not known: the guest gets no %v next hop until a later Setup", v)
}

// loseSecond adds the IPv4 addresses that DHCP does not give the guest.
func loseSecond(r *cache.Record, addresses []netip.Prefix) {
	LoseFurther(r, addresses, "DHCPv4 leases one address, %v: configure it in the guest")
}

// LoseFurther adds the addresses of a family but the first, which the reason names.
func LoseFurther(r *cache.Record, addresses []netip.Prefix, why string) {
	for _, a := range addresses {
		if first := addresses[0].Addr(); a.Addr() != first { // else it has another prefix length
			lose(r, "address", a.Addr().String(), why, first)
		}
	}
}

// loseConditional adds the NIC's routes that some of the guest's packets would take: those with a TOS, or from some of
// its addresses.
func (n NIC) loseConditional(r *cache.Record, v ip.Version) {
	looked, own := n.Table(v).Looked, fib.Sorted(n.Own(v))
	for _, route := range n.found.Routes {
		if ip.Of(route.Destination.Addr()) != v || !route.Uses(n.Index) || route.Type != netstate.RouteUnicast || !looked[route.Table] {
			continue
		}
		switch {
		case route.TOS != 0:
			lose(r, "route", fmt.Sprintf("tos %#x %v", route.TOS, route.Destination), "a lease has no routes for some packets to a destination")
		case own.MeetIn(route.Source) && !own.LieIn(route.Source):
			lose(r, "route", fmt.Sprintf("from %v to %v", route.Source, route.Destination), "a lease has no routes for some of the guest's addresses")
		}
	}
}
