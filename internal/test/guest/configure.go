package guest

import (
	"context"
	"errors"
	"sync"
)

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
