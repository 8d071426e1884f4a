package wiring

import (
	"cmp"
	"fmt"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// macvtap leaves the NIC as it is, but up and receiving all multicast groups.
type macvtap struct{}

func (macvtap) asks(netstate.Names) Questions { return Questions{} }

func (macvtap) sameGuest(infra.Binding) bool { return true }
func (macvtap) wiredAs() string              { return "" }
func (macvtap) makesMAC() bool               { return false }

func (macvtap) wire(p *Plan) error {
	nic := p.nic
	if nic.Kind != kindMacvtap {
		kind := cmp.Or(nic.Kind, "card of the machine")
		if nic.Tap != nil {
			kind = "tap" // which the kernel calls a tun, too
		}
		return p.refuse(fmt.Sprintf("its kind is %s: the program that made it would have to make a macvtap", kind))
	}
	p.Record = p.recordOf(nic.MAC)
	p.Record.Tap = nic.Name
	p.addWarnings(p.warnUnfiltered("the guest can send with every MAC and address")...)
	p.addWarnings(p.warnNotServed()...)
	p.Record.Static = p.on.Static(p.Record.MAC)
	nic.Up = true
	nic.AllMulticast = true // otherwise it receives the groups of the namespace's addresses, and not the guest's
	p.wanted.Links = []netstate.Link{nic}
	return nil
}
