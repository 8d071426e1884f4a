package kernel

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// deleteGroup deletes all links of a group. It is no error if there are none: another program has deleted them. It
// returns as soon as the links have gone from the namespace; Close waits for the rest of the deletion.
//
// The kernel deletes links in two parts. With the lock of rtnetlink held, the links go down, lose their masters and
// ports, and leave the namespace. After that, without the lock, it waits until no CPU can still use them, and frees
// them (netdev_run_todo). To wait takes some ten milliseconds. Nothing of a plan depends on the second part, so the
// operations after the deletion, and the kernel's wait for deleted tables when the nfnetlink socket is closed
// (nft_rcv_nl_event), go on meanwhile.
func (n *Namespace) deleteGroup(op netstate.GroupDel) error {
	links, err := n.Links()
	if err != nil {
		return err
	}
	members := slices.DeleteFunc(links, func(l netstate.Link) bool { return l.Group != op.Group })
	s, err := netlink.Open(unix.NETLINK_ROUTE) // here, as a goroutine may run in another namespace
	if err != nil {
		return err
	}
	answer := make(chan error, 1)
	n.deletions.Go(func() {
		defer s.Close()
		err := s.Ask(encodeGroupDel(op))
		if netlink.Answers(err, unix.ENODEV) {
			err = nil
		}
		answer <- err
	})
	for {
		select {
		case err := <-answer:
			return err
		case <-time.After(50 * time.Microsecond): // the kernel answers haveGone only when the first part is over, or has not begun
		}
		gone, err := haveGone(n.route, members)
		if err != nil {
			return <-answer
		}
		if gone {
			return nil
		}
	}
}

// haveGone reports whether none of the links is left. Of no links it is false: then the kernel's answer is awaited.
func haveGone(route *netlink.Socket, links []netstate.Link) (bool, error) {
	for _, l := range links {
		r := netlink.NewRequest(unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, l.Index), netlink.Attr32(unix.IFLA_EXT_MASK, skipStatistics))
		if there, err := route.Finds(r); err != nil {
			return false, fmt.Errorf("read whether link %s has gone: %w", l.Name, err)
		} else if there {
			return false, nil
		}
	}
	return len(links) > 0, nil
}
