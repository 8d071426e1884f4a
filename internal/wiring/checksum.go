package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// warnIncomplete are the warnings of what the guest's root can go round, on kernels that cannot complete all checksums
// before the policy looks.
func (p *Plan) warnIncomplete(ends router.Ends) (list texts) {
	field, found, completed := p.policy.Field(), p.found, false
	for _, e := range ends {
		v := ip.Of(e.Guest)
		if slices.Contains(found.Checksums, v) {
			completed = true
			continue
		}
		what := "the port"
		if v == 6 {
			what = "the port, the protocol and the address"
		}
		list.add("%s of %s does not hold against the guest's root for IPv%d, as this kernel cannot complete checksums by a rule: the guest can change %s of a packet after the rules have looked; load the modules (modprobe -a nft_compat xt_CHECKSUM) and call Setup again",
			field, p.names.NIC, v, what)
	}
	if found.EarlyChecksums && !found.ClearsChecksums && completed {
		list.add("%s of %s does not hold against the guest's root: this kernel takes frames whose checksum begins before the packet, and the guest can change the port, the protocol and the address of a packet after the rules have looked; load the modules (modprobe -a sch_ingress cls_u32 act_vlan) and call Setup again, or use a newer kernel, such as Linux 6.18, which refuses such frames",
			field, p.names.NIC)
	}
	return list
}

// clearingFilters do for checksums that begin in the Ethernet header what the router's completeChecksums does for the
// others. Some kernels take such frames, the rule does nothing for them, and a later device would write.
//
// The action vlan takes the Ethernet header off again after it has looked for a tag. The kernel then writes no checksum
// any more that begins before what is left (skb_postpull_rcsum, linux/skbuff.h). Without a tag it changes nothing else
// (tcf_vlan_act in net/sched/act_vlan.c). The kernel itself has taken the tag off a frame in the same way, before
// filters look, so tagged frames need no filter: to them, those of IPv4 and IPv6 do not apply.
//
// The filters come after those of the responder, and one number has one protocol.
func (s *seen) clearingFilters() []netstate.Filter {
	if !s.policy.IsSet() || !s.found.EarlyChecksums || !s.found.ClearsChecksums {
		return nil
	}
	var filters []netstate.Filter
	for i, protocol := range []uint16{netstate.EthernetIPv4, netstate.EthernetIPv6} {
		filters = append(filters, netstate.Filter{
			Link: compare.NewTap, Priority: firstClearing + uint16(i), Protocol: protocol, Keys: []netstate.Key{key(0, 0, 0)}, Clears: true,
		})
	}
	return filters
}

// firstClearing is beyond the numbers of responderFilters, whatever these are.
const firstClearing = 60000
