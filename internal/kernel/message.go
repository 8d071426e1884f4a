package kernel

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"

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
		return encodeLinkDel(o), nil
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
		return encodeAddressDel(o), nil
	case netstate.RouteAdd:
		return encodeRouteAdd(o), nil
	case netstate.RouteDel:
		return encodeRouteDel(o), nil
	case netstate.NeighbourAdd:
		return encodeNeighbourAdd(o), nil
	case netstate.NeighbourDel:
		return encodeNeighbourDel(o), nil
	case netstate.IngressAdd:
		return encodeIngressAdd(o), nil
	case netstate.IngressDel:
		return encodeIngressDel(o), nil
	case netstate.FilterAdd:
		return encodeFilterAdd(o), nil
	case netstate.FilterDel:
		return encodeFilterDel(o), nil
	}
	return nil, fmt.Errorf("no rtnetlink message for %T", op)
}
