package kernel

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

// FuzzParse: bytes from the kernel are parsed, or refused by an error.
func FuzzParse(f *testing.F) {
	expressions := nl.NewRtAttr(unix.NFTA_LIST_ELEM, nil)
	expressions.AddRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated("nat"))
	expressions.AddRtAttr(unix.NFTA_EXPR_DATA, nl.NewRtAttr(unix.NFTA_NAT_REG_ADDR_MAX, []byte{1}).Serialize())
	f.Add(expressions.Serialize())
	for _, op := range []netstate.Op{
		netstate.BridgeSet{Settings: netstate.Settings{"mcast_snooping": 0, "stp_state": 1, "group_fwd_mask": 8}},
		netstate.BridgePortSet{Settings: netstate.Settings{"learning": 0}},
		netstate.FilterAdd{Filter: netstate.Filter{Keys: []netstate.Key{{Mask: 1}}}},
	} {
		r, err := encodeOperation(op)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(r.Serialize()[unix.NLMSG_HDRLEN:])
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		parseLink(b)
		parseLinkInfo(b, &netstate.Link{})
		parseFamilies(b, &netstate.Link{})
		parseFilter(b)
		parseU32Options(b, netstate.Filter{})
		parseQdisc(b)
		parseTable(b)
		parseChain(b)
		known{}.text(b)
	})
}
