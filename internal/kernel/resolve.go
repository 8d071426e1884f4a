package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

// Resolve asks for the MAC of a neighbour as any packet to it would (ip neigh add ... use), and
// waits up to five seconds for the answer: the namespace's own address may still be
// tentative, and a new link mute.
func (n *Namespace) Resolve(ctx context.Context, link int, address netip.Addr) (netstate.Neighbour, bool, error) {
	var asked time.Time
	end := time.Now().Add(5 * time.Second)
	for wait := time.Millisecond; time.Now().Before(end); wait = min(2*wait, 20*time.Millisecond) {
		if time.Since(asked) > time.Second {
			asked = time.Now()
			if err := n.ask(link, address); err != nil {
				return netstate.Neighbour{}, false, fmt.Errorf("ask for neighbour %v: %w", address, err)
			}
		}
		var s netstate.Snapshot
		if err := n.neighbours(&s); err != nil {
			return netstate.Neighbour{}, false, fmt.Errorf("look for neighbour %v: %w", address, err)
		}
		for _, e := range s.Neighbours {
			if e.Link == link && e.Address == address {
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

func (n *Namespace) ask(link int, address netip.Addr) error {
	head := ndMsg{family: family(address), index: uint32(link), flags: unix.NTF_USE}
	question := request(unix.RTM_NEWNEIGH, put, head, nl.NewRtAttr(unix.NDA_DST, address.AsSlice()))
	failures, err := n.route.send([][]byte{question.Serialize()}, 0)
	if err == nil && len(failures) > 0 {
		err = failures[0].err
	}
	return err
}
