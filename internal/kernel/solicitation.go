package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
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
// answer. If the neighbour still answers with the known MAC, that is the result, although another host may have
// answered first: else each host of the network could take the neighbour's place. A packet socket sees frames before a
// bridge, tc and nftables do. What the guest itself sends is no answer.
func (n *Namespace) Solicit(ctx context.Context, q Solicitation) (cache.MAC, bool, error) {
	fd, err := openForAdvertisements(q.Link, q.Target.Is4())
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAFNOSUPPORT) || noLink(err) {
		return cache.MAC{}, false, nil
	}
	if err != nil {
		return cache.MAC{}, false, fmt.Errorf("ask for neighbour %v: %w", q.Target, err)
	}
	defer inBackground(func() { unix.Close(fd) }) // packet_release in the kernel waits
	frame := make([]byte, 1<<11)
	var other cache.MAC // than the known one
	questions := solicitations
	if q.Once {
		questions = 1
	}
	for range questions {
		err := unix.Sendto(fd, q.frame(), 0, &unix.SockaddrLinklayer{Ifindex: q.Link})
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
			size, from, err := unix.Recvfrom(fd, frame, 0)
			if err == unix.EAGAIN || err == unix.EINTR {
				continue
			}
			if noLink(err) {
				return cache.MAC{}, false, nil
			}
			if err != nil {
				return cache.MAC{}, false, fmt.Errorf("answer of neighbour %v: %w", q.Target, err)
			}
			if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			a, err := parseAnswer(frame[:size])
			forGuest := a.receiver == q.MAC || !a.receiver.Unicast()
			if err == nil && forGuest && a.target == q.Target && a.mac != q.MAC && a.sender != q.MAC {
				if a.mac == q.Known || q.Known.IsZero() {
					return a.mac, true, nil
				}
				if other.IsZero() {
					other = a.mac
				}
			}
		}
		if !other.IsZero() {
			return other, true, nil
		}
	}
	return cache.MAC{}, false, nil
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
		load(unix.BPF_B, ethernetHeader+6), drop(unix.IPPROTO_ICMPV6, 3),
		load(unix.BPF_B, ethernetHeader+ipv6Header), drop(neighbourAdvertisement, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	if arp {
		filter = []unix.SockFilter{
			load(unix.BPF_H, 12), drop(unix.ETH_P_ARP, 3),
			load(unix.BPF_H, ethernetHeader+6), drop(arpReply, 1),
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

// Sizes of headers, and numbers of ICMPv6 (RFC 4861 sections 4.3, 4.4 and 4.6.1).
const (
	ethernetHeader = 14
	ipv6Header     = 40

	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	icmpTarget             = 8  // where the target is in both
	icmpOptions            = 24 // where the options begin
	sourceLinkAddress      = 1
	targetLinkAddress      = 2
)

// ARP (RFC 826).
const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
)

// arpHead begins each ARP packet for IPv4 on Ethernet.
var arpHead = [6]byte{0, 1, unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff, 6, 4}

func (q Solicitation) frame() []byte {
	if q.Target.Is4() {
		return encodeARPRequest(q)
	}
	return encodeSolicitation(q)
}

// encodeARPRequest makes the frame of an ARP request.
func encodeARPRequest(q Solicitation) []byte {
	b := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	b = append(b, q.MAC[:]...)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_ARP)
	b = append(b, arpHead[:]...)
	b = append(b, 0, arpRequest)
	b = append(b, q.MAC[:]...)
	b = append(b, q.Source.AsSlice()...)
	b = append(b, make([]byte, 6)...)
	return append(b, q.Target.AsSlice()...)
}

// parseAnswer parses the frame of an ARP reply or of a neighbour advertisement.
func parseAnswer(frame []byte) (advertisement, error) {
	if len(frame) < ethernetHeader+arpLen || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_ARP {
		return parseAdvertisement(frame)
	}
	b := frame[ethernetHeader:]
	a := advertisement{
		receiver: cache.MAC(frame[:6]), sender: cache.MAC(frame[6:12]),
		target: netip.AddrFrom4([4]byte(b[14:18])), mac: cache.MAC(b[8:14]),
	}
	if [6]byte(b) != arpHead || binary.BigEndian.Uint16(b[6:]) != arpReply || !a.mac.Unicast() {
		return advertisement{}, errNoAdvertisement
	}
	return a, nil
}

// encodeSolicitation makes the frame of a neighbour solicitation, which goes to the solicited-node multicast
// address of the target.
func encodeSolicitation(q Solicitation) []byte {
	source, target := q.Source.As16(), q.Target.As16()
	to := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]}
	icmp := []byte{neighbourSolicitation, 0, 0, 0, 0, 0, 0, 0}
	icmp = append(icmp, target[:]...)
	icmp = append(icmp, sourceLinkAddress, 1)
	icmp = append(icmp, q.MAC[:]...)
	return encodeICMPv6(cache.MAC{0x33, 0x33, to[12], to[13], to[14], to[15]}, q.MAC, source, to, icmp)
}

// encodeICMPv6 makes the frame of a message of neighbour discovery, and sets the message's checksum.
func encodeICMPv6(toMAC, fromMAC cache.MAC, from, to [16]byte, icmp []byte) []byte {
	var b []byte
	b = append(b, toMAC[:]...)
	b = append(b, fromMAC[:]...)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IPV6)
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(icmp)))
	b = append(b, unix.IPPROTO_ICMPV6, 255)
	b = append(b, from[:]...)
	b = append(b, to[:]...)
	b = append(b, icmp...)
	sum := ^checksumICMPv6(b[ethernetHeader:][:ipv6Header], icmp)
	binary.BigEndian.PutUint16(b[ethernetHeader+ipv6Header+2:], sum)
	return b
}

// checksumICMPv6 is the sum over the pseudo-header and a message (RFC 4443 section 2.3). It is 0xffff for a
// message with the right checksum.
func checksumICMPv6(ip, icmp []byte) uint16 {
	sum := uint32(len(icmp)) + unix.IPPROTO_ICMPV6
	for _, b := range [][]byte{ip[8:ipv6Header], icmp} {
		for i, octet := range b {
			sum += uint32(octet) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// advertisement is what a frame with a neighbour advertisement, or with an ARP reply, says.
type advertisement struct {
	receiver, sender cache.MAC // of the frame
	target           netip.Addr
	mac              cache.MAC
}

// errNoAdvertisement is the error of a frame that is no valid neighbour advertisement or ARP reply with a MAC.
var errNoAdvertisement = errors.New("no neighbour advertisement, and no ARP reply")

// parseAdvertisement parses an Ethernet frame, and checks it as RFC 4861 section 7.1.2 demands.
func parseAdvertisement(frame []byte) (advertisement, error) {
	if len(frame) < ethernetHeader+ipv6Header+icmpOptions {
		return advertisement{}, errNoAdvertisement
	}
	ip := frame[ethernetHeader:]
	const nextHeader, hopLimit = 6, 7
	if binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IPV6 || ip[0]>>4 != 6 || ip[nextHeader] != unix.IPPROTO_ICMPV6 || ip[hopLimit] != 255 {
		return advertisement{}, errNoAdvertisement
	}
	icmp, size := ip[ipv6Header:], int(binary.BigEndian.Uint16(ip[4:]))
	if size < icmpOptions || size > len(icmp) {
		return advertisement{}, errNoAdvertisement
	}
	icmp = icmp[:size] // padding follows
	if icmp[0] != neighbourAdvertisement || icmp[1] != 0 || checksumICMPv6(ip, icmp) != 0xffff {
		return advertisement{}, errNoAdvertisement
	}
	a := advertisement{
		receiver: cache.MAC(frame[:6]), sender: cache.MAC(frame[6:12]),
		target: netip.AddrFrom16([16]byte(icmp[icmpTarget:icmpOptions])),
	}
	for options := icmp[icmpOptions:]; len(options) > 0; {
		if len(options) < 2 || options[1] == 0 || len(options) < 8*int(options[1]) {
			return advertisement{}, errNoAdvertisement
		}
		if options[0] == targetLinkAddress && options[1] == 1 {
			a.mac = cache.MAC(options[2:8])
		}
		options = options[8*int(options[1]):]
	}
	if !a.mac.Unicast() || a.target.IsMulticast() {
		return advertisement{}, errNoAdvertisement
	}
	return a, nil
}
