package router

import (
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// completeChecksums are the tables that complete the checksums of what the guest sends before the policy looks.
//
// The header of a virtio frame (struct virtio_net_hdr, linux/virtio_net.h) names two octets of the frame, in which a
// later device writes a checksum. They can be the destination port or a part of an IPv6 address. What is written is the
// guest's choice, as the guest chooses what is summed up. So without this rule a policy would look at one destination,
// and the packet would go to another one. The kernel writes nothing into a packet whose checksum is complete.
//
// The rule comes before all others, before fragments are put together too: the kernel moves the headers of IPv6 then,
// and what the virtio header says of them becomes wrong. The rule leaves out packets that are cut into segments. The
// kernel drops such a packet if its checksum is not to be where its protocol has it.
func (r Router) completeChecksums() (tables []firewall.Table) {
	for _, e := range r.Ends {
		v := ip.Of(e.Guest)
		if len(r.Allowed) == 0 || !slices.Contains(r.Checksums, v) {
			continue
		}
		tables = append(tables, firewall.Table{Family: ip.Pick(v, firewall.Mangle4, firewall.Mangle6), Name: r.Names.Table, Chains: []firewall.Chain{{
			Name: r.Names.Table, Type: "filter", Hook: firewall.Prerouting, Priority: firewall.BeforeDefrag,
			Rules: []firewall.Rule{rule(firewall.CompleteChecksum{}, r.fromGuest())},
		}}})
	}
	return tables
}
