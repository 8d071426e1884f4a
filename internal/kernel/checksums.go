package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/tap"
)

// EarlyChecksums reports whether the kernel takes frames whose checksum begins before the packet, in the link-layer
// header. Of such a packet a rule does not complete the checksum (skb_checksum_help in net/core/dev.c finds no place),
// and a device still writes it. Linux 6.12 refuses such a frame, and Linux 6.1 does not. If it takes them, clears
// reports whether the kernel has the modules for a filter that clears such checksums; it loads them for the question.
//
// For the question there is a tap for a moment, which is down: a frame that the kernel takes ends there. The calling
// thread is in the namespace.
func (n *Namespace) EarlyChecksums() (takes, clears bool, err error) {
	failed := func(err error) (bool, bool, error) {
		return false, false, fmt.Errorf("ask for checksums before the packet: %w", err)
	}
	fd, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return failed(err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("gw-probe%d")
	if err != nil {
		return failed(err)
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return failed(err)
	}
	var answers [2]error
	for i, start := range []uint16{34, 0} {
		frame := make([]byte, 10+14+20+8) // struct virtio_net_hdr, Ethernet, IPv4, UDP
		frame[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(frame[6:], start)
		binary.NativeEndian.PutUint16(frame[8:], 40-start)
		frame[10+12], frame[10+14] = 0x08, 0x45
		_, answers[i] = unix.Write(fd, frame)
	}
	if answers[0] != unix.EIO {
		return failed(fmt.Errorf("a frame to a link that is down: %v", answers[0]))
	}
	if answers[1] == unix.EINVAL {
		return false, false, nil
	}
	if err := unix.IoctlIfreq(n.route.Descriptor(), unix.SIOCGIFINDEX, ifr); err != nil {
		return failed(err)
	}
	if clears, err = clearsChecksums(n.route, int(ifr.Uint32())); err != nil {
		return failed(err)
	}
	return true, clears, nil
}

// clearsChecksums adds a filter that clears checksums to the link, and reports whether the kernel can.
func clearsChecksums(route *netlink.Socket, link int) (bool, error) {
	for _, r := range []*nl.NetlinkRequest{
		encodeIngressAdd(netstate.IngressAdd{Index: link}),
		encodeFilterAdd(netstate.FilterAdd{Filter: netstate.Filter{Link: link, Priority: 1, Protocol: netstate.EthernetIPv4, Keys: []netstate.Key{{}}, Clears: true}}),
	} {
		err := route.Ask(r)
		if netlink.Answers(err, unix.ENOENT) || netlink.Answers(err, unix.EOPNOTSUPP) || netlink.Answers(err, unix.EINVAL) { // as the module is missing
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
