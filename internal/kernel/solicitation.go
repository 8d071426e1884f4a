package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/netlink"
)

// Solicitation is a question for the MAC of a neighbour, in the name of a guest.
type Solicitation struct {
	Link   int       // the Ethernet link to ask at
	MAC    cache.MAC // the guest's
	Source netip.Addr
	Target netip.Addr // of the family of Source
	Known  cache.MAC  // that the neighbour has had; zero: none
	Once   bool       // asks once, and not again: a third of the time
}

// The question is repeated, as it or its answer can be lost.
const (
	solicitations   = 3 // MAX_MULTICAST_SOLICIT (RFC 4861 section 10)
	solicitPatience = 330 * time.Millisecond
)

// Solicit asks for a neighbour as the guest would, and returns the MAC that the neighbour advertises. The second
// result is false if there is no answer within a second, if the link is down or gone, or if the caller cannot
// open a packet socket (CAP_NET_RAW).
//
// Solicit works where Resolve does not: at a link whose frames go to the guest, so that the namespace does not see the
// answer. If the neighbour still answers a question with the known MAC, that is the result, although another host may
// have answered first: else each host of the network could take the neighbour's place. A packet socket sees frames
// before a bridge, tc and nftables do. What the guest itself sends is no answer.
func (n *Namespace) Solicit(ctx context.Context, q Solicitation) (cache.MAC, bool, error) {
	fd, err := openForAdvertisements(q.Link, q.Target.Is4())
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAFNOSUPPORT) || noLink(err) {
		return cache.MAC{}, false, nil
	}
	if err != nil {
		return cache.MAC{}, false, fmt.Errorf("ask for neighbour %v: %w", q.Target, err)
	}
	defer netlink.InBackground(func() { unix.Close(fd) }) // packet_release in the kernel waits
	received := make([]byte, 1<<11)
	var other cache.MAC // than the known one
	questions := solicitations
	if q.Once {
		questions = 1
	}
	for range questions {
		err := unix.Sendto(fd, q.encode(), 0, &unix.SockaddrLinklayer{Ifindex: q.Link})
		if noLink(err) {
			return cache.MAC{}, false, nil
		}
		if err != nil && err != unix.ENOBUFS { // the link's queue is full
			return cache.MAC{}, false, fmt.Errorf("ask for neighbour %v: %w", q.Target, err)
		}
		for end := time.Now().Add(solicitPatience); time.Now().Before(end); {
			if ctx.Err() != nil {
				return cache.MAC{}, false, fmt.Errorf("wait for neighbour %v: %w", q.Target, context.Cause(ctx))
			}
			const slice = 50 // milliseconds between looks at ctx
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, min(slice, int(time.Until(end).Milliseconds())+1)); err != nil && err != unix.EINTR {
				return cache.MAC{}, false, fmt.Errorf("wait for neighbour %v: %w", q.Target, err)
			}
			size, from, err := unix.Recvfrom(fd, received, 0)
			if err == unix.EAGAIN || err == unix.EINTR {
				continue
			}
			if noLink(err) {
				return cache.MAC{}, false, nil
			}
			if err != nil {
				return cache.MAC{}, false, fmt.Errorf("ask for neighbour %v: its answer: %w", q.Target, err)
			}
			if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			a, ok := frame.ParseAnswer(received[:size])
			forGuest := a.Receiver == q.MAC || !a.Receiver.Unicast()
			if ok && forGuest && a.Target == q.Target && a.MAC != q.MAC && a.Sender != q.MAC {
				if a.MAC == q.Known || q.Known.IsZero() {
					return a.MAC, true, nil
				}
				if other.IsZero() {
					other = a.MAC
				}
			}
		}
	}
	return other, !other.IsZero(), nil
}

// noLink reports whether the error of a packet socket means that its link is down or gone.
func noLink(err error) bool {
	return errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
}

// openForAdvertisements opens a packet socket at a link, which receives neighbour advertisements alone, or ARP replies
// alone. A socket for one protocol would see frames only after a bridge had taken them, so this one is for all
// protocols, and filters before it is bound: then no other frame is ever queued.
func openForAdvertisements(link int, arp bool) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	load := func(size uint16, at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: at}
	}
	drop := func(unless uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: unless}
	}
	filter := []unix.SockFilter{
		load(unix.BPF_H, 12), drop(unix.ETH_P_IPV6, 5),
		load(unix.BPF_B, frame.EthernetLen+6), drop(unix.IPPROTO_ICMPV6, 3),
		load(unix.BPF_B, frame.EthernetLen+frame.IPv6Len), drop(frame.NeighbourAdvertisement, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	if arp {
		filter = []unix.SockFilter{
			load(unix.BPF_H, 12), drop(unix.ETH_P_ARP, 3),
			load(unix.BPF_H, frame.EthernetLen+6), drop(frame.ARPReply, 1),
			{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
			{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		err = fmt.Errorf("filter of a packet socket: %w", err)
	} else if err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder16(unix.ETH_P_ALL), Ifindex: link}); err != nil {
		err = fmt.Errorf("bind a packet socket: %w", err)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// encode returns the frame of the question: an ARP request, or a neighbour solicitation.
func (q Solicitation) encode() []byte {
	if !q.Target.Is4() {
		return frame.AppendSolicitation(nil, q.MAC, q.Source, q.Target)
	}
	request := frame.ARP{Operation: frame.ARPRequest, SenderMAC: q.MAC, Sender: q.Source, Target: q.Target}
	return request.Append(frame.AppendEthernet(nil, frame.Broadcast, q.MAC, frame.TypeARP))
}
