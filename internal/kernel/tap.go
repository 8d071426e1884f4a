package kernel

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/child"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/tap"
)

// addTap makes a persistent tap with a certain index (Documentation/networking/tuntap.rst). After an error there is no
// tap. The kernel labels a tap with the SELinux context of the process that makes it, and of each that opens it:
// o.Context, if there is one.
func addTap(o netstate.TapAdd) error {
	flags := unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL
	if o.VNetHeader {
		flags |= unix.IFF_VNET_HDR
	}
	if o.Tap.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	index := int32(o.Index)
	calls := child.CallsOn(tap.Device) // closing it deletes the tap unless it is persistent by then
	calls.IoctlPointer("TUNSETIFINDEX", unix.TUNSETIFINDEX, unsafe.Pointer(&index))
	if err := setInterface(calls, o.Link, flags); err != nil {
		return err
	}
	calls.Ioctl("TUNSETOWNER", unix.TUNSETOWNER, uintptr(o.Tap.Owner.UID))
	if o.Tap.Owner.GID != 0 {
		calls.Ioctl("TUNSETGROUP", unix.TUNSETGROUP, uintptr(o.Tap.Owner.GID))
	}
	calls.Ioctl("TUNSETPERSIST", unix.TUNSETPERSIST, 1)
	return calls.Make(o.Context)
}

// setInterface adds the call that makes the file that of a tap.
func setInterface(calls *child.Calls, name string, flags int) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(uint16(flags))
	calls.IoctlPointer("TUNSETIFF", unix.TUNSETIFF, unsafe.Pointer(ifr))
	return nil
}

// ResetTap gives a guest's tap that no process has open the settings of a new one: the kernel keeps what a VMM has set,
// which the next one may not know of. A tap that a process has open is left alone.
func (n *Namespace) ResetTap(o netstate.TapReset) error {
	link := netstate.Link{Index: o.Index, Name: o.Link, Tap: &netstate.Tap{MultiQueue: o.MultiQueue}}
	if used, err := isOpen(n.route, link); err != nil || used {
		return err
	}
	return resetTap(n.route, o, link)
}

// resetTap is ResetTap of a tap that no process had open a moment ago. The kernel lets another process attach to a
// multi-queue tap all the same, so resetTap looks again once it has attached. With a context it does not: a child
// process cannot ask.
func resetTap(route *netlink.Socket, o netstate.TapReset, link netstate.Link) error {
	flags := unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | tap.NoFilter | tap.NoCarrier // the kernel keeps vnet_hdr
	if o.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	calls := child.CallsOn(tap.Device)
	if err := setInterface(calls, o.Link, flags); err != nil {
		return err
	}
	calls.Check(func() error {
		if _, queues, err := readUse(route, link); err != nil || queues <= 1 { // its own
			return err
		}
		return unix.EBUSY
	})
	for _, s := range tap.Initial() {
		calls.TryIoctl(s.Name, s.Request, s.Value, s.Unknown)
	}
	err := calls.Make(o.Context)
	if errors.Is(err, unix.EBUSY) { // opened meanwhile
		return nil
	}
	return err
}

// readOffloads finds out whether a VMM that has ended left offloads at the guest's tap. The question is cheap for a tap
// without offloads.
func readOffloads(route *netlink.Socket, l *netstate.Link) error {
	if !tap.Offloads(l.Name) {
		return nil
	}
	used, err := isOpen(route, *l)
	l.Offloads = err == nil && !used
	return err
}

// Attributes of a tap (linux/if_link.h, IFLA_TUN_*) in a link's IFLA_INFO_DATA.
const (
	tunOwner      = 1
	tunGroup      = 2
	tunType       = 3
	tunMultiQueue = 7
	tunQueues     = 8 // IFLA_TUN_NUM_QUEUES, of a multi-queue tap alone
	tunDisabled   = 9 // IFLA_TUN_NUM_DISABLED_QUEUES: attached, and switched off by TUNSETQUEUE
)

// parseTap parses the attributes of a link of the kind tun into l. l.Tap stays nil for a tun device that is
// no tap.
func parseTap(b []byte, l *netstate.Link) error {
	var t netstate.Tap
	var kind uint8
	err := netlink.EachAttribute(b, 0, func(a uint16, v []byte) error {
		switch a {
		case tunOwner:
			t.Owner.UID = netlink.U32(v)
			t.Owner.Root = t.Owner.UID == 0 // a tap without an owner has no such attribute
		case tunGroup:
			t.Owner.GID = netlink.U32(v)
		case tunType:
			kind = netlink.U8(v)
		case tunMultiQueue:
			t.MultiQueue = netlink.U8(v) != 0
		}
		return nil
	})
	if kind == unix.IFF_TAP {
		l.Tap = &t
	}
	return err
}

// InUse reports whether a process has the tap open. A link that is gone is not in use.
//
// A program that is being started has copies of the files of the process that starts it, also of those that the process
// closes meanwhile, until it is executed. That is no use of the tap. InUse waits for this process's fork. The copies go
// later, in the exec, for which no one waits (begin_new_exec, fs/exec.c). So a use counts that lasts: emulated kernels
// with two CPUs and 12 programs that start all the time took up to 0.75 s to close a copy.
func (n *Namespace) InUse(tap netstate.Link) (bool, error) {
	const lasts = 2 * time.Second
	child.AwaitForks()
	for pause := time.Millisecond; ; pause *= 2 { // few looks: each may change the carrier twice
		used, err := isOpen(n.route, tap)
		if err != nil || !used || pause > lasts {
			return used, err
		}
		time.Sleep(pause)
	}
}

// isOpen reports whether a process, or a program that is being started, has the tap open.
//
// The kernel reports the number of open queues of a multi-queue tap. Other taps have a carrier as long as a process has
// them open, also if the tap is down; but the process can take the carrier away (TUNSETCARRIER).
func isOpen(route *netlink.Socket, tap netstate.Link) (bool, error) {
	carrier, queues, err := readUse(route, tap)
	if netlink.Answers(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil || carrier || queues > 0 || tap.Tap.MultiQueue {
		return carrier || queues > 0, err
	}
	return takesCarrier(route, tap)
}

// readUse returns the tap's carrier, and how many queues of a multi-queue tap are open.
func readUse(route *netlink.Socket, tap netstate.Link) (carrier bool, queues uint32, err error) {
	r := netlink.NewRequest(unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, tap.Index), netlink.Attr32(unix.IFLA_EXT_MASK, skipStatistics))
	err = route.Dump(r, func() { carrier, queues = false, 0 }, func(m []byte) (err error) {
		carrier, queues, err = parseUse(m)
		return err
	})
	if err != nil {
		return false, 0, fmt.Errorf("read whether a process has tap %s open: %w", tap.Name, err)
	}
	return carrier, queues, nil
}

// takesCarrier asks the kernel to give a tap its carrier and to take it away again, in one batch. The kernel refuses
// that for a tap that no process has open (tun_net_change_carrier).
func takesCarrier(route *netlink.Socket, tap netstate.Link) (bool, error) {
	var batch [][]byte
	for _, on := range []byte{1, 0} {
		r := netlink.NewRequest(unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, tap.Index), nl.NewRtAttr(unix.IFLA_CARRIER, []byte{on}))
		batch = append(batch, r.Serialize())
	}
	failures, err := sendRoute(route, batch)
	if err != nil {
		return false, fmt.Errorf("ask whether a process has tap %s open: %w", tap.Name, err)
	}
	refused := len(failures) > 0 && failures[0].Message == 0
	return !refused, nil
}

// parseUse returns the carrier of the link that the message describes, and how many queues of a multi-queue tap are
// open.
func parseUse(m []byte) (carrier bool, queues uint32, err error) {
	err = netlink.EachAttribute(m, unix.SizeofIfInfomsg, func(kind uint16, v []byte) error {
		switch kind {
		case unix.IFLA_CARRIER:
			carrier = netlink.U8(v) != 0
		case unix.IFLA_LINKINFO:
			return netlink.EachAttribute(v, 0, func(kind uint16, v []byte) error {
				if kind != nl.IFLA_INFO_DATA {
					return nil
				}
				return netlink.EachAttribute(v, 0, func(kind uint16, v []byte) error {
					if kind == tunQueues || kind == tunDisabled {
						queues += netlink.U32(v)
					}
					return nil
				})
			})
		}
		return nil
	})
	return carrier, queues, err
}
