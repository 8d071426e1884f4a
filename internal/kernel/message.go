package kernel

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
)

// Encode returns the netlink messages of a batch, and the index of the message whose acknowledgement
// says that the kernel has worked on all.
//
// The operations must be all of nftables or all of rtnetlink, and at least one. The sequence numbers are
// 0, and no message asks for an acknowledgement yet.
func Encode(ops []netstate.Op) (messages [][]byte, acknowledge int, err error) {
	switch c, err := carrierOf(ops[0]); {
	case err != nil:
		return nil, 0, err
	case c == nfnetlink:
		messages, err := nft.Encode(ops)
		return messages, len(messages) - 2, err // the last message ends the transaction
	}
	for _, op := range ops {
		m, err := encodeOperation(op)
		if err != nil {
			return nil, 0, err
		}
		messages = append(messages, m.Serialize())
	}
	return messages, len(messages) - 1, nil
}

// encodeOperation returns the rtnetlink message of an operation.
func encodeOperation(op netstate.Op) (*nl.NetlinkRequest, error) {
	switch o := op.(type) {
	case netstate.LinkAdd:
		return encodeLinkAdd(o), nil
	case netstate.LinkSet:
		return encodeLinkSet(o), nil
	case netstate.LinkDel:
		return netlink.NewRequest(unix.RTM_DELLINK, 0, ifInfo(unix.AF_UNSPEC, o.Index)), nil
	case netstate.GroupDel:
		return encodeGroupDel(o), nil
	case netstate.BridgePortSet:
		return encodeBridgePortSet(o)
	case netstate.BridgeSet:
		return encodeBridgeSet(o)
	case netstate.ConfSet:
		return encodeConfSet(o)
	case netstate.AddressAdd:
		return encodeAddressAdd(o), nil
	case netstate.AddressDel:
		return netlink.NewRequest(unix.RTM_DELADDR, 0, addressParts(o.Address)...), nil
	case netstate.RouteAdd: // without NLM_F_EXCL, as another route to the same destination may exist
		return netlink.NewRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, routeParts(o.Route)...), nil
	case netstate.RouteDel:
		return netlink.NewRequest(unix.RTM_DELROUTE, 0, routeParts(o.Route)...), nil
	case netstate.NeighbourAdd:
		return netlink.NewRequest(unix.RTM_NEWNEIGH, netlink.Put, neighbourParts(o.Neighbour)...), nil
	case netstate.NeighbourDel:
		return netlink.NewRequest(unix.RTM_DELNEIGH, 0, neighbourParts(o.Neighbour)...), nil
	case netstate.IngressAdd:
		return encodeIngressAdd(o), nil
	case netstate.IngressDel: // with all filters in it
		return netlink.NewRequest(unix.RTM_DELQDISC, 0, &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(o.Index), Parent: ingressParent}), nil
	case netstate.ShapeSet:
		return encodeShapeSet(o), nil
	case netstate.FilterAdd:
		return encodeFilterAdd(o), nil
	case netstate.FilterDel: // the classifiers of a priority and a protocol
		return netlink.NewRequest(unix.RTM_DELTFILTER, 0, filterHeader(o.Filter), nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("u32"))), nil
	}
	return nil, fmt.Errorf("no rtnetlink message for %T", op)
}
