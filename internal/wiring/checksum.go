package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
)

// completeChecksums wants the checksums of what the guest sends to be complete before the policy looks.
//
// The header of a virtio frame (struct virtio_net_hdr, linux/virtio_net.h) names two octets of the frame, in which a
// later device writes a checksum. They can be the destination port or a part of an IPv6 address. What is written is the
// guest's choice, as the guest chooses what is summed up. So without this rule a policy would look at one destination,
// and the packet would go to another one. The kernel writes nothing into a packet whose checksum is complete.
//
// The rule comes before all others, before fragments are put together too: the kernel moves the headers of IPv6 then,
// and what the virtio header says of them becomes wrong. The rule leaves out packets that are cut into segments. The
// kernel drops such a packet if its checksum is not to be where its protocol has it.
func (p *Plan) completeChecksums(t forwarding) {
	if len(t.egress) == 0 {
		return
	}
	var tables []firewall.Table
	for _, e := range t.ends {
		v := version(e.guest)
		if !slices.Contains(p.found.Checksums, v) {
			p.warnIncomplete(v)
			continue
		}
		family := map[int]firewall.Family{4: firewall.Mangle4, 6: firewall.Mangle6}[v]
		tables = append(tables, firewall.Table{Family: family, Name: t.names.Table, Chains: []firewall.Chain{{
			Name: t.names.Table, Type: "filter", Hook: firewall.Prerouting, Priority: firewall.BeforeDefrag,
			Rules: []firewall.Rule{rule(firewall.CompleteChecksum{}, t.fromGuest())},
		}}})
	}
	if p.found.EarlyChecksums && len(tables) > 0 {
		p.warn("%s of %s does not hold against the guest's root: this kernel takes frames whose checksum begins before the packet, and the guest can change the port, the protocol and the address of a packet after the rules have looked; a newer kernel, such as Linux 6.18, refuses them",
			p.egressField(), p.names.NIC)
	}
	p.makeTables = append(p.makeTables, func() []firewall.Table { return tables })
}

// warnIncomplete warns of what the guest's root can go round without completeChecksums.
func (p *Plan) warnIncomplete(v int) {
	what := "the port"
	if v == 6 {
		what = "the port, the protocol and the address"
	}
	p.warn("%s of %s does not hold against the guest's root for IPv%d, as this kernel cannot complete checksums by a rule: the guest can change %s of a packet after the rules have looked; load the modules (modprobe -a nft_compat xt_CHECKSUM) and call Setup again",
		p.egressField(), p.names.NIC, v, what)
}
