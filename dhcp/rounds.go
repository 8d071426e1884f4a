package dhcp

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

const (
	arpAnnouncements = 2                     // ANNOUNCE_NUM, RFC 5227 section 1.1
	arpInterval      = 2 * time.Second       // ANNOUNCE_INTERVAL
	ndAnnouncements  = 3                     // MAX_NEIGHBOR_ADVERTISEMENT, RFC 4861 section 10
	ndInterval       = 1 * time.Second       // RETRANS_TIMER
	rarpPause        = 50 * time.Millisecond // QEMU's announce-initial and announce-step
	rarpRequests     = 5                     // QEMU's announce-rounds

	minFrame = 60 // octets of an Ethernet frame without its checksum
)

// round is a part of an announcement: frames, and the pause before them.
type round struct {
	pause  time.Duration
	frames [][]byte
}

// newRounds returns the announcement for a record.
func newRounds(rec cache.Record, neighbours map[netip.Addr]neighbour) []round {
	var arp, nd, rarp [][]byte
	if rec.Announces() {
		nd = announcements6(rec, neighbours)
		arp = announcements4(rec, neighbours)
		rarp = [][]byte{arpFrame(frame.TypeRARP, frame.RARPRequest, rec.MAC, netip.IPv4Unspecified(), rec.MAC, netip.IPv4Unspecified())}
	}
	for _, a := range slices.SortedFunc(maps.Keys(neighbours), netip.Addr.Compare) {
		n := neighbours[a]
		if a.Is4() {
			arp = append(arp, announcement4(n.mac, a)...)
		} else {
			nd = append(nd, toAllNodes(nil, n.mac, a, n.unsolicited))
		}
	}
	if a := gateway4(rec); a.IsValid() && !rec.GatewayMAC.IsZero() {
		arp = append(arp, announcement4(rec.GatewayMAC, a)...)
	}
	if rec.IPv6 != nil && rec.IPv6.Router != nil && !rec.IPv6.Router.MAC.IsZero() {
		if _, announced := neighbours[rec.IPv6.Router.Address]; !announced {
			nd = append(nd, announcement6(rec.IPv6.Router.MAC, rec.IPv6.Router.Address, frame.Override|frame.Router))
		}
	}
	return inTime(arp, nd, rarp)
}

// inTime puts the frames in the order of time: the RARP requests at 0, 50, 200, 450 and 800 ms, as QEMU sends them.
func inTime(arp, nd, rarp [][]byte) []round {
	at := map[time.Duration][][]byte{}
	add := func(when time.Duration, frames [][]byte) {
		if len(frames) > 0 {
			at[when] = append(at[when], frames...)
		}
	}
	var when time.Duration
	for i := range rarpRequests {
		if i > 0 {
			when += time.Duration(2*i-1) * rarpPause
		}
		add(when, rarp)
	}
	for i := range arpAnnouncements {
		add(time.Duration(i)*arpInterval, arp)
	}
	for i := range ndAnnouncements {
		add(time.Duration(i)*ndInterval, nd)
	}
	var rounds []round
	var last time.Duration
	for _, when := range slices.Sorted(maps.Keys(at)) {
		rounds = append(rounds, round{pause: when - last, frames: at[when]})
		last = when
	}
	return rounds
}

// gateway4 is the guest's IPv4 gateway; zero: it has none.
func gateway4(rec cache.Record) netip.Addr {
	if rec.IPv4 == nil {
		return netip.Addr{}
	}
	return rec.IPv4.Gateway()
}

// addressesOf returns the guest's addresses of a family, the leased one first, and the gateways of its routes for which
// the responder does not answer.
func addressesOf(rec cache.Record, neighbours map[netip.Addr]neighbour, is4 bool) (own, gateways []netip.Addr) {
	note := func(list *[]netip.Addr, a netip.Addr) {
		if _, answered := neighbours[a]; a.IsValid() && a.Is4() == is4 && !answered && !slices.Contains(*list, a) {
			*list = append(*list, a)
		}
	}
	if rec.IPv4 != nil {
		note(&own, rec.IPv4.Address.Addr())
		for _, r := range rec.IPv4.Routes {
			note(&gateways, r.Gateway)
		}
	}
	if rec.IPv6 != nil {
		for _, a := range rec.IPv6.Addresses() {
			note(&own, a)
		}
		if rec.IPv6.Router != nil {
			note(&gateways, rec.IPv6.Router.Address)
		}
	}
	if rec.Static != nil {
		for _, a := range rec.Static.Addresses {
			note(&own, a.Address.Addr())
		}
		for _, r := range rec.Static.Routes {
			for _, h := range r.Hops {
				note(&gateways, h.Gateway)
			}
			note(&gateways, r.Gateway)
		}
	}
	return own, gateways
}

// announcements4 are the guest's ARP announcements, and its questions for its gateways.
func announcements4(rec cache.Record, neighbours map[netip.Addr]neighbour) (frames [][]byte) {
	own, gateways := addressesOf(rec, neighbours, true)
	for _, a := range own {
		frames = append(frames, announcement4(rec.MAC, a)...)
	}
	for _, g := range gateways {
		if len(own) > 0 {
			frames = append(frames, arpFrame(frame.TypeARP, frame.ARPRequest, rec.MAC, own[0], cache.MAC{}, g))
		}
	}
	return frames
}

// announcement4 is an announcement as a request and as a reply: some stations learn from only one of them.
func announcement4(mac cache.MAC, a netip.Addr) [][]byte {
	return [][]byte{
		arpFrame(frame.TypeARP, frame.ARPRequest, mac, a, cache.MAC{}, a),
		arpFrame(frame.TypeARP, frame.ARPReply, mac, a, mac, a),
	}
}

// announcements6 are the guest's neighbour advertisements, and its solicitations for its gateways.
func announcements6(rec cache.Record, neighbours map[netip.Addr]neighbour) (frames [][]byte) {
	own, gateways := addressesOf(rec, neighbours, false)
	for _, a := range own {
		frames = append(frames, announcement6(rec.MAC, a, frame.Override))
	}
	for _, g := range gateways {
		if len(own) > 0 {
			frames = append(frames, frame.AppendSolicitation(nil, rec.MAC, own[0], g))
		}
	}
	return frames
}

// announcement6 is an unsolicited neighbour advertisement.
func announcement6(mac cache.MAC, a netip.Addr, flags byte) []byte {
	return toAllNodes(nil, mac, a, frame.Advertisement(flags, a, mac))
}

// arpFrame returns a broadcast frame with an ARP or RARP packet (RFC 826, RFC 903), with padding.
func arpFrame(etherType, operation uint16, sender cache.MAC, senderIP netip.Addr, target cache.MAC, targetIP netip.Addr) []byte {
	b := frame.AppendEthernet(nil, frame.Broadcast, sender, etherType)
	b = frame.ARP{Operation: operation, SenderMAC: sender, Sender: senderIP, TargetMAC: target, Target: targetIP}.Append(b)
	return append(b, make([]byte, minFrame-len(b))...)
}
