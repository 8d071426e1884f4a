package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// redirect forwards what comes in at the NIC to the guest's tap, and the other way round, before the
// namespace's own stack sees it. The NIC keeps all that it has.
type redirect struct{}

func (redirect) asks(string) Questions {
	return Questions{Sysctls: append([]string{netstate.NoIPv6}, netstate.BridgeCalls()...), Gateways: true, Log: true}
}

func (redirect) traits() traits { return traits{mends: true} }

func (redirect) withoutNIC() (string, bool) { return "", false }

func (redirect) wire(p *Plan, nic netstate.Link) error {
	if err := p.checkRedirect(nic); err != nil {
		return err
	}
	p.Record = p.record(nic, nic.MAC)
	nic.AllMulticast = nic.AllMulticast || nic.Kind != "veth" // a veth filters no multicast
	p.keepNIC(nic)
	p.wanted.Links = append(p.wanted.Links, nic)
	p.addLease(&p.Record, nic)
	p.Record.Static = p.static(nic, p.Record.MAC)
	p.warnDown(nic)
	p.addTaps(nic)
	g := p.filteredGuest(nic, p.guestAddresses(nic))
	g.pass, g.longest, g.local.hears = firewall.Fwd{Device: nic.Name}, nic.MTU, g.local.learns
	if err := p.addFilter(g); err != nil {
		return err
	}
	p.wanted.Tables = append(g.addForwarding(p.wanted.Tables, p.names, p.spec.Guard), p.muteNamespace(p.names.NIC))
	if len(p.spec.Guard.MACs) > 0 && nic.Kind != "veth" {
		p.warn("%s receives for its own MAC alone: from the other MACs of guard.macs the guest can send, and nothing comes back", nic.Name)
	}
	return nil
}

// checkRedirect refuses a NIC through which a guest's frames cannot pass.
func (p *Plan) checkRedirect(nic netstate.Link) error {
	reason := ""
	switch {
	case p.found.NoNFTables:
		reason = "this kernel has no nf_tables, which would forward the frames"
	case !nic.Ethernet:
		reason = "it carries no Ethernet"
	case !nic.MAC.Unicast():
		reason = "it has no MAC"
	case p.child(nic, "vlan", kindMacvlan, kindMacvtap, kindIPVLAN) != "":
		reason = fmt.Sprintf("%s lies on it, and would hear nothing", p.child(nic, "vlan", kindMacvlan, kindMacvtap, kindIPVLAN))
	default:
		return nil
	}
	return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingRedirect, Reason: reason, Instead: cache.BindingMasquerade}
}

// child is the name of a link of one of the kinds that lies on the NIC; empty: there is none.
func (p *Plan) child(nic netstate.Link, kinds ...string) string {
	for _, l := range p.found.Links {
		if l.Parent == nic.Index && nic.Index != 0 && slices.Contains(kinds, l.Kind) {
			return l.Name
		}
	}
	return ""
}
