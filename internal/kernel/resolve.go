package kernel

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
)

// Resolve asks for the MAC of a neighbour as any packet to it would (ip neigh add ... use), and
// waits up to a second for the answer.
func (n *Namespace) Resolve(link int, address netip.Addr) (infra.Neighbour, bool, error) {
	head := ndMsg{family: family(address), index: uint32(link), flags: unix.NTF_USE}
	ask := request(unix.RTM_NEWNEIGH, put, head, nl.NewRtAttr(unix.NDA_DST, address.AsSlice()))
	failures, err := n.route.send([][]byte{ask.Serialize()}, 0)
	if err == nil && len(failures) > 0 {
		err = failures[0].err
	}
	if err != nil {
		return infra.Neighbour{}, false, fmt.Errorf("ask for neighbour %v: %w", address, err)
	}
	wait := time.Millisecond
	for waited := time.Duration(0); waited < resolveTime; waited += wait {
		var s infra.Snapshot
		if err := n.neighbours(&s); err != nil {
			return infra.Neighbour{}, false, fmt.Errorf("look for neighbour %v: %w", address, err)
		}
		for _, e := range s.Neighbours {
			if e.Link == link && e.Address == address {
				return e, true, nil
			}
		}
		time.Sleep(wait)
	}
	return infra.Neighbour{}, false, nil
}

const resolveTime = time.Second
