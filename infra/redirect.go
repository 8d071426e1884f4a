package infra

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
)

// redirect lets the NIC keep all it has, and hands what comes in at it to the tap, and the other way
// round, before the namespace's own stack sees it.
func (p *Plan) redirect(nic Link, spec Spec) error {
	if err := p.redirectable(nic); err != nil {
		return err
	}
	p.Record = p.record(nic, spec, nic.MAC)
	nic.AllMulticast = nic.AllMulticast || nic.Kind != "veth" // which passes everything as it is
	p.keep(nic)
	p.wired.links = append(p.wired.links, nic)
	p.hand(&p.Record, nic)
	p.down(nic)
	p.taps(nic, spec, p.Record)
	g := p.guest(p.own(nic))
	if err := p.guard(g); err != nil {
		return err
	}
	p.wired.tables = append(g.across(p.wired.tables, p.names, spec.Guard), mute(p.names))
	if len(spec.Guard.MACs) > 0 && nic.Kind != "veth" {
		p.warn("%s receives for its own MAC alone: from the other MACs of guard.macs the guest can send, and nothing comes back", nic.Name)
	}
	return nil
}

// mute keeps the namespace from sending by the NIC, its own packets and those that it forwards: they would
// have the guest's MAC and address, and the guest would get the answers. Without packets there is no ARP
// either.
func mute(n Names) firewall.Table {
	return firewall.Table{Family: firewall.Inet, Name: n.Table, Chains: []firewall.Chain{{
		Name: "from-namespace", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.Filter,
		Rules: []firewall.Rule{rule(firewall.Drop{}, firewall.OutInterface{Name: n.NIC})},
	}}}
}

// redirectable says whether frames from and to a guest can pass through the NIC.
func (p *Plan) redirectable(nic Link) error {
	reason := ""
	switch {
	case p.found.NoNFTables:
		reason = "this kernel has no nf_tables, which would forward the frames"
	case !nic.Ethernet:
		reason = "it carries no Ethernet"
	case !nic.MAC.Unicast():
		reason = "it has no MAC"
	case p.child(nic, "vlan", "macvlan", macvtap, ipvlan) != "":
		reason = fmt.Sprintf("%s lies on it, and would hear nothing", p.child(nic, "vlan", "macvlan", macvtap, ipvlan))
	default:
		return nil
	}
	return &RefusedError{NIC: nic.Name, Binding: Redirect{}.Kind(), Reason: reason, Instead: Masquerade{}.Kind()}
}

// child is a link of one of these kinds that lies on the NIC, or nothing.
func (p *Plan) child(nic Link, kinds ...string) string {
	for _, l := range p.found.Links {
		if l.Parent == nic.Index && nic.Index != 0 && slices.Contains(kinds, l.Kind) {
			return l.Name
		}
	}
	return ""
}

// across adds what forwards: from the tap what the filter has let pass, and from the NIC what may come
// to the guest.
func (g guest) across(tables []firewall.Table, n Names, guard Guard) []firewall.Table {
	if len(tables) == 0 {
		tables = []firewall.Table{{Family: firewall.NetDev, Name: n.Table}}
	}
	const behindFilter = firewall.Filter + 10
	toTap := firewall.Fwd{Device: n.Tap}
	toGuest := []firewall.Rule{rule(toTap)}
	if !guard.Off && g.served {
		toGuest = incoming(toTap, func(kind uint16) firewall.Match {
			return firewall.Bytes{Header: firewall.Ethernet, Offset: 12, Value: binary.BigEndian.AppendUint16(nil, kind)}
		})
	}
	t := &tables[0]
	t.Chains = append(t.Chains,
		firewall.Chain{
			Name: "from-guest", Type: "filter", Hook: firewall.Ingress, Device: n.Tap, Priority: behindFilter,
			Rules: []firewall.Rule{rule(firewall.Fwd{Device: n.NIC})},
		},
		firewall.Chain{
			Name: "to-guest", Type: "filter", Hook: firewall.Ingress, Device: n.NIC, Priority: firewall.Filter,
			Rules: toGuest,
		})
	return tables
}

// Auto is Bridge where that can work, else Redirect, else Masquerade with its defaults. What it became
// is the plan's Binding, and in the record.
type Auto struct{}

// Kind is "auto".
func (Auto) Kind() string { return kindAuto }

func (Auto) binding() {}

const kindAuto = "auto"

// choose makes the first plan that is not refused.
func choose(found Snapshot, spec Spec) (*Plan, error) {
	var refused []*RefusedError
	for _, b := range []Binding{Bridge{}, Redirect{}, Masquerade{}} {
		spec.Binding = b
		p, err := NewPlan(found, spec)
		r, isRefusal := err.(*RefusedError)
		if !isRefusal {
			if err == nil {
				p.Refused = refused
			}
			return p, err
		}
		refused = append(refused, r)
	}
	last := *refused[len(refused)-1]
	for _, r := range refused[:len(refused)-1] {
		last.Reason += fmt.Sprintf("; %s: %s", r.Binding, r.Reason)
	}
	last.Instead = ""
	return nil, &last
}
