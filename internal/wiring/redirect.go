package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// redirect forwards what comes in at the NIC to the guest's tap, and the other way round, before the
// namespace's own stack sees it. The NIC keeps all that it has, except its MAC if the guest has another one.
type redirect struct{ infra.Redirect }

func (redirect) asks(netstate.Names) Questions {
	return Questions{Sysctls: []string{netstate.NoIPv6}, Gateways: true, Log: true}
}

func (b redirect) sameGuest(other infra.Binding) bool { return b.Redirect == other }
func (b redirect) wiredAs() string                    { return wiredWith(b.MAC) }
func (redirect) makesMAC() bool                       { return false }

func (b redirect) wire(p *Plan) error {
	nic := p.nic
	if b.MAC.IsZero() {
		b.MAC = nic.MAC
	}
	if err := p.checkRedirect(); err != nil {
		return err
	}
	if err := p.checkOtherMAC(b.MAC); err != nil {
		return err
	}
	p.Record = p.leasedRecord(b.MAC)
	wired := nic
	wired.AllMulticast = nic.AllMulticast || nic.Kind != "veth" // a veth filters no multicast
	if b.MAC != nic.MAC {
		wired = withMAC(wired, b.MAC)
		p.wanted.Neighbours = append(p.wanted.Neighbours, p.found.PermanentNeighbours(nic.Index)...) // the kernel forgets them
	}
	p.keepNIC()
	p.wanted.Links = append(p.wanted.Links, wired)
	p.addWarnings(p.warnOtherMAC(p.Record.MAC)...)
	p.addTaps(p.newTap())
	g := guestfilter.Guest{Addresses: p.guestAddresses(p.Record.MAC), Renewed: len(p.on.Leased(ip.V6)) > 0, Launcher: p.owner.UID}
	if !p.lowersMTU() { // otherwise the rules for MTU drop shorter frames
		g.Longest = nic.MTU
	}
	if err := p.addFilter(g); err != nil {
		return err
	}
	p.addLosses(slices.Concat(p.downLosses(), p.filteredLosses())...)
	return nil
}

// toGuardMACs are the frames to n MACs of Guard, as a loss names them.
func toGuardMACs(n int) string { return fmt.Sprintf("to guard.macs (%d)", n) }

// filteredLosses are the frames that Guard lets pass, and that the NIC itself drops: it receives what the namespace has
// asked for. Under bridge a NIC receives everything.
func (s *seen) filteredLosses() (list losses) {
	nic, guard := s.nic, s.spec.Guard
	if len(guard.MACs) > 0 && nic.Kind != "veth" {
		list.lose("frames", toGuardMACs(len(guard.MACs)), "%s receives for its own MAC alone: from these MACs the guest can send, and nothing comes back", nic.Name)
	}
	if len(guard.VLANs) > 0 && nic.Kind == "" {
		list.lose("frames", fmt.Sprintf("with a tag of guard.vlans (%d)", len(guard.VLANs)), "%s is a network card, which can drop tags that no VLAN of the namespace has", nic.Name)
	}
	return list
}

const noFwd = "this kernel's rules cannot forward frames to another link; load what they need (modprobe nft_fwd_netdev)"

// checkRedirect refuses a NIC through which a guest's frames cannot pass.
func (s *seen) checkRedirect() error {
	reason, nic := "", s.nic
	switch {
	case s.found.NoNFTables:
		reason = "this kernel has no nf_tables, which would forward the frames; load them (modprobe nf_tables), or choose masquerade with guard.off"
	case s.found.NoFwd:
		reason = noFwd
	case !nic.Ethernet:
		reason = "it carries no Ethernet"
	case !nic.MAC.Unicast():
		reason = "it has no MAC"
	case whyPortsMAC(nic) != "":
		reason = whyPortsMAC(nic)
	case child(s.found, nic, append(receivers, kindVLAN)...) != "":
		reason = fmt.Sprintf("%s lies on it, and would receive nothing", child(s.found, nic, append(receivers, kindVLAN)...))
	default:
		return nil
	}
	return s.refuse(reason)
}

// checkOtherMAC refuses a guest's MAC that is not the NIC's where the NIC cannot take it.
func (s *seen) checkOtherMAC(mac cache.MAC) error {
	reason, nic := "", s.nic
	switch {
	case mac == nic.MAC:
		return nil
	case nic.Kind == kindMacvlan, nic.Kind == kindMacvtap:
		reason = "the link below it passes frames by the MAC that the " + nic.Kind + " was made with"
	case nic.SharesMAC():
		reason = "it shares the MAC of the link below it"
	case nic.Kind == kindHSR:
		reason = "an hsr takes no other MAC"
	case nic.Mode == netstate.ModeTLB, nic.Mode == netstate.ModeFollow:
		reason = "its MAC is that of a port (" + nic.Mode + ")"
	default:
		return nil
	}
	return s.refuse(fmt.Sprintf("its kind is %s and its MAC %v, and the guest must have %v: %s", nic.Kind, nic.MAC, mac, reason))
}

// withMAC is the NIC with the guest's MAC. The kernel must make no link-local address of it, which is the guest's.
func withMAC(nic netstate.Link, mac cache.MAC) netstate.Link {
	nic.MAC = mac
	if nic.AddrGen != netstate.AddrGenNoIPv6 {
		nic.AddrGen = netstate.AddrGenNone
	}
	return nic
}
