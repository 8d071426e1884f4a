package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// ndMsg is struct ndmsg (linux/neighbour.h), the header of a neighbour's message. Package nl does
// not have the struct.
type ndMsg struct {
	family uint8
	index  uint32
	state  uint16
	flags  uint8
}

func (m ndMsg) Len() int { return 12 }

func (m ndMsg) Serialize() []byte {
	b := make([]byte, m.Len())
	b[0] = m.family
	copy(b[4:], nl.Uint32Attr(m.index))
	copy(b[8:], nl.Uint16Attr(m.state))
	b[10] = m.flags
	return b
}

// parseNdMsg parses the header. Attributes follow it.
func parseNdMsg(m []byte) (ndMsg, error) {
	if len(m) < (ndMsg{}).Len() {
		return ndMsg{}, netlink.ErrCutShort
	}
	return ndMsg{family: m[0], index: netlink.U32(m[4:]), state: netlink.U16(m[8:]), flags: m[10]}, nil
}

// readNeighbours reads the ARP and NDP entries that have a MAC, and the static entries of bridges' forwarding
// databases, if s has a bridge.
func readNeighbours(route *netlink.Socket, s *netstate.Snapshot) error {
	families := []uint8{unix.AF_UNSPEC}
	if slices.ContainsFunc(s.Links, func(l netstate.Link) bool { return l.Kind == "bridge" }) {
		families = append(families, unix.AF_BRIDGE)
	}
	for _, family := range families {
		have := s.Neighbours
		known := map[netstate.Neighbour]bool{}
		r := netlink.NewRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP, ndMsg{family: family})
		err := route.Dump(r, func() { s.Neighbours = have; clear(known) }, func(m []byte) error {
			entry, err := parseNeighbour(m)
			if family == unix.AF_BRIDGE && known[entry] {
				return err // the same of another VLAN, with which it is deleted
			}
			known[entry] = true
			if err == nil && (entry.Address.IsValid() || entry.Permanent) && !entry.MAC.IsZero() {
				s.Neighbours = append(s.Neighbours, entry)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Neighbours returns the ARP and NDP entries that have a MAC.
func (n *Namespace) Neighbours() ([]netstate.Neighbour, error) {
	var s netstate.Snapshot
	if err := readNeighbours(n.route, &s); err != nil {
		return nil, fmt.Errorf("read neighbours: %w", err)
	}
	return s.Neighbours, nil
}

// neighbourParts are struct ndmsg and the attributes of a permanent neighbour, or, without an address, of a
// static forwarding entry.
func neighbourParts(n netstate.Neighbour) []nl.NetlinkRequestData {
	if !n.Address.IsValid() {
		return []nl.NetlinkRequestData{
			ndMsg{family: unix.AF_BRIDGE, index: uint32(n.Link), state: unix.NUD_NOARP, flags: unix.NTF_MASTER},
			nl.NewRtAttr(unix.NDA_LLADDR, n.MAC[:]),
		}
	}
	head := ndMsg{family: netlink.Family(n.Address), index: uint32(n.Link), state: unix.NUD_PERMANENT, flags: n.Flags}
	return []nl.NetlinkRequestData{
		head,
		nl.NewRtAttr(unix.NDA_DST, n.Address.AsSlice()),
		nl.NewRtAttr(unix.NDA_LLADDR, n.MAC[:]),
	}
}

// parseNeighbour parses struct ndmsg and its attributes (linux/neighbour.h, NDA_*). Address and MAC
// are zero for an entry that resolves nothing: a failed or incomplete one, or one of a link without ARP.
func parseNeighbour(m []byte) (netstate.Neighbour, error) {
	head, err := parseNdMsg(m)
	if err != nil {
		return netstate.Neighbour{}, err
	}
	if head.family == unix.AF_BRIDGE {
		return parseForwarding(m)
	}
	entry := netstate.Neighbour{Link: int(head.index), Permanent: head.state&unix.NUD_PERMANENT != 0}
	if entry.Permanent {
		entry.Flags = head.flags & (netstate.NeighbourRouter | netstate.NeighbourExtLearned)
	}
	if head.state&(unix.NUD_NOARP|unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0 {
		return entry, nil
	}
	err = netlink.EachAttribute(m, head.Len(), func(kind uint16, v []byte) error {
		switch kind {
		case unix.NDA_DST:
			entry.Address = netlink.Addr(v)
		case unix.NDA_LLADDR:
			if len(v) == len(entry.MAC) {
				entry.MAC = cache.MAC(v)
			}
		}
		return nil
	})
	return entry, err
}

// parseForwarding parses an entry of a forwarding database. Only a static entry of a bridge (NDA_MASTER,
// NUD_NOARP) is permanent: other entries are learnt, or belong to the link itself.
func parseForwarding(m []byte) (netstate.Neighbour, error) {
	head, err := parseNdMsg(m)
	entry := netstate.Neighbour{Link: int(head.index)}
	if err != nil {
		return entry, err
	}
	err = netlink.EachAttribute(m, head.Len(), func(kind uint16, v []byte) error {
		switch kind {
		case unix.NDA_LLADDR:
			if len(v) == len(entry.MAC) {
				entry.MAC = cache.MAC(v)
			}
		case unix.NDA_MASTER:
			entry.Permanent = head.state&unix.NUD_NOARP != 0
		}
		return nil
	})
	return entry, err
}

// Resolve returns the neighbour with an address on a link, with its MAC. The second result is false if
// there is no answer within five seconds. An answer with the MAC of a group is none.
//
// The kernel asks as it would for a packet to the address (ip neigh add ... use). Resolve repeats the
// question each second, as the first can be lost: the namespace's own IPv6 address may still be tentative,
// and a link that has just come up may not forward yet. ctx ends the wait with an error. A gateway that cannot answer
// yet is not asked, if it is at the other end of a veth (see detecting).
func (n *Namespace) Resolve(ctx context.Context, link int, address netip.Addr) (netstate.Neighbour, bool, error) {
	if mac, ok := detecting(n.route, link, address); ok {
		return netstate.Neighbour{Link: link, Address: address, MAC: mac}, true, nil
	}
	var asked time.Time
	end := time.Now().Add(5 * time.Second)
	for wait := time.Millisecond; time.Now().Before(end); wait = min(2*wait, 20*time.Millisecond) {
		if time.Since(asked) > time.Second {
			asked = time.Now()
			if err := probeNeighbour(n.route, link, address); err != nil {
				return netstate.Neighbour{}, false, fmt.Errorf("ask for neighbour %v: %w", address, err)
			}
		}
		var s netstate.Snapshot
		if err := readNeighbours(n.route, &s); err != nil {
			return netstate.Neighbour{}, false, fmt.Errorf("look for neighbour %v: %w", address, err)
		}
		for _, e := range s.Neighbours {
			if e.Link == link && e.Address == address && e.MAC.Unicast() {
				return e, true, nil
			}
		}
		select {
		case <-ctx.Done():
			return netstate.Neighbour{}, false, fmt.Errorf("wait for neighbour %v: %w", address, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
	return netstate.Neighbour{}, false, nil
}

// probeNeighbour makes the kernel ask for a MAC, unless it knows the MAC (NTF_USE).
func probeNeighbour(route *netlink.Socket, link int, address netip.Addr) error {
	head := ndMsg{family: netlink.Family(address), index: uint32(link), flags: unix.NTF_USE}
	return route.Ask(netlink.NewRequest(unix.RTM_NEWNEIGH, netlink.Put, head, nl.NewRtAttr(unix.NDA_DST, address.AsSlice())))
}
