// Package nft sends tables of rules to the nftables of a network namespace, and reads what is there. It takes and
// returns the values of package firewall. It does not know how links are made.
//
//   - [Tables.Send] takes the operations on tables and sends them in one transaction.
//   - [Tables.Read] reads the tables into a Snapshot. Rules are compared by the octets of their expressions.
//   - [Tables.Counts] returns the counters, and [Tables.Pin] opens a destination for a time.
//   - [OpenDropLog] follows the packets that rules drop.
package nft

import (
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
)

// Tables are the nftables of a network namespace, as a netlink socket in it.
type Tables struct {
	filter *netlink.Socket // nil: the kernel has no nfnetlink
	route  *netlink.Socket // which the links' names come from
	latest latestTables
	// sight is what the last Snapshot saw, and expected the sight of one that another process has made.
	sight    Sight
	expected expected
	// frees: a transaction has deleted something, which the kernel frees later.
	frees bool
}

// New returns the nftables of a namespace in which the two sockets were opened. The names of links come from the
// one of rtnetlink. Filter is nil if the kernel has no nfnetlink. The caller has to call Close, which closes filter.
func New(filter, route *netlink.Socket) *Tables { return &Tables{filter: filter, route: route} }

// Close closes the socket. It does not wait until the kernel has freed what transactions have deleted
// (nft_rcv_nl_event, net/netfilter/nf_tables_api.c).
func (n *Tables) Close() {
	switch {
	case n.filter == nil:
	case n.frees:
		netlink.InBackground(n.filter.Close)
	default:
		n.filter.Close()
	}
}

// IsFamily reports whether the family is one of nftables, and not of iptables.
func IsFamily(f firewall.Family) bool {
	_, is := families[f]
	return is
}

// families are the nftables families in use, as numbers (NFPROTO_*, linux/netfilter.h).
var families = map[firewall.Family]uint8{
	firewall.Inet:    unix.NFPROTO_INET,
	firewall.Bridge:  unix.NFPROTO_BRIDGE,
	firewall.NetDev:  unix.NFPROTO_NETDEV,
	firewall.Mangle4: unix.NFPROTO_IPV4,
	firewall.Mangle6: unix.NFPROTO_IPV6,
}

// beginTransaction begins one that the kernel refuses in another generation (ERESTART); 0: it is of any generation.
func (w *writer) beginTransaction(generation uint32) {
	const nfnlBatchGenID = 1 // linux/netfilter/nfnetlink.h
	w.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		w.number32(nfnlBatchGenID, generation)
	}
}

// beginTables begins a message of nftables (NFT_MSG_*).
func (w *writer) beginTables(kind, flags uint16, family firewall.Family) {
	w.begin(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, families[family], 0)
}

// parseTable parses struct nfgenmsg and the attributes of a table (linux/netfilter/nf_tables.h,
// NFTA_TABLE_*). Others is the number of all objects in the table, its chains and sets included. Family is empty for a
// family that is not in use.
func parseTable(m []byte) (image firewall.Image, err error) {
	err = netlink.EachAttribute(m, netlink.SizeofNetfilter, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_TABLE_NAME:
			image.Name = unix.ByteSliceToString(v)
		case unix.NFTA_TABLE_FLAGS:
			image.Flags = netlink.BE32(v)
		case unix.NFTA_TABLE_USE:
			image.Others = int(netlink.BE32(v))
		}
		return nil
	})
	for family, number := range families {
		if err == nil && m[0] == number {
			image.Family = family
		}
	}
	return image, err
}

// generation is the number of the namespace's nftables generation (NFT_MSG_GETGEN, NFTA_GEN_ID).
func (n *Tables) generation() (uint32, error) {
	const nftaGenID = 1 // linux/netfilter/nf_tables.h
	var generation uint32
	question := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0, netlink.Netfilter(unix.NFPROTO_UNSPEC))
	err := n.filter.Dump(question, func() {}, func(m []byte) error {
		return netlink.EachAttribute(m, netlink.SizeofNetfilter, func(kind uint16, v []byte) error {
			if kind == nftaGenID {
				generation = netlink.BE32(v)
			}
			return nil
		})
	})
	return generation, err
}
