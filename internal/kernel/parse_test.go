package kernel

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
)

// FuzzParse: bytes from the kernel are parsed, or refused by an error.
func FuzzParse(f *testing.F) {
	expressions := nl.NewRtAttr(unix.NFTA_LIST_ELEM, nil)
	expressions.AddRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated("nat"))
	expressions.AddRtAttr(unix.NFTA_EXPR_DATA, nl.NewRtAttr(unix.NFTA_NAT_REG_ADDR_MAX, []byte{1}).Serialize())
	f.Add(expressions.Serialize())
	for _, op := range []infra.Op{
		infra.BridgeSet{Settings: infra.Settings{"mcast_snooping": 0, "stp_state": 1, "group_fwd_mask": 8}},
		infra.PortSet{Settings: infra.Settings{"learning": 0}},
		infra.FilterAdd{Filter: infra.Filter{Keys: []infra.Key{{Mask: 1}}}},
	} {
		r, err := rtnetlink(op)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(r.Serialize()[unix.NLMSG_HDRLEN:])
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		parseLink(b)
		parseLinkInfo(b, &infra.Link{})
		parseFamilies(b, &infra.Link{})
		parseFilter(b)
		parseU32(b, infra.Filter{})
		foreignQdisc(b)
		parseTable(b)
		parseChain(b)
		known{}.text(b)
	})
}
