package dhcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
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

// ErrStandby is the error of Announce while the guest is on standby. Activate of phase1.NIC ends the standby.
var ErrStandby = errors.New("the guest is on standby")

// Announce announces the guest's new place to the network, and its gateways to the guest, after a move. The network
// gets ARP announcements (RFC 5227), neighbour advertisements (RFC 4861) and a RARP request. It gets nothing under
// masquerade, nor while no VMM has the guest's tap open.
//
// Announce returns when everything is sent, after about 2 seconds. If ctx is done earlier, it returns, and Serve sends
// the rest. The error can be that of a write, or one of these:
//
//	syscall.ENOTCONN  Serve does not run
//	ErrStandby        the guest is on standby
func (r *Responder) Announce(ctx context.Context) error {
	if err := r.answers.Load().mayAnnounce(); err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	done := make(chan error, 1)
	r.mu.Lock()
	if r.port == nil {
		r.mu.Unlock()
		return fmt.Errorf("announce: %w", errNotServed)
	}
	r.asked = append(r.asked, done)
	err := r.port.SetReadDeadline(time.Unix(1, 0))
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("announce: interrupt the port's read: %w", err)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("announce: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errNotServed = fmt.Errorf("the guest is not served: %w", syscall.ENOTCONN)

func (r *answers) mayAnnounce() error {
	if r.standby {
		return ErrStandby
	}
	return nil
}

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

// toAllNodes appends a frame with an ICMPv6 message to all nodes of the link.
func toAllNodes(b []byte, mac cache.MAC, src netip.Addr, msg []byte) []byte {
	return frame.AppendICMPv6(b, frame.MulticastMAC(frame.AllNodes), mac, frame.AllNodes, src, msg)
}

// arpFrame returns a broadcast frame with an ARP or RARP packet (RFC 826, RFC 903), with padding.
func arpFrame(etherType, operation uint16, sender cache.MAC, senderIP netip.Addr, target cache.MAC, targetIP netip.Addr) []byte {
	b := frame.AppendEthernet(nil, frame.Broadcast, sender, etherType)
	b = frame.ARP{Operation: operation, SenderMAC: sender, Sender: senderIP, TargetMAC: target, Target: targetIP}.Append(b)
	return append(b, make([]byte, minFrame-len(b))...)
}

// startAnnouncement begins an announcement, anew if one is under way, for a caller of Announce or for none.
func (l *loop) startAnnouncement(callers ...chan error) {
	l.callers = append(l.callers, callers...)
	if err := l.answers.mayAnnounce(); err != nil {
		l.endAnnouncement(err)
		return
	}
	l.announcing, l.failure, l.rounds = true, nil, l.answers.rounds
	l.advertiseAnew()
	l.announce(time.Now())
}

// announce sends the rounds that are due.
func (l *loop) announce(now time.Time) {
	for first := true; len(l.rounds) > 0; first = false {
		if r := l.rounds[0]; !first && r.pause > 0 {
			l.due = now.Add(r.pause)
			return
		}
		for _, f := range l.rounds[0].frames {
			if err := l.send(f); err != nil {
				l.failure = err
			}
		}
		l.rounds = l.rounds[1:]
	}
	l.endAnnouncement(l.failure)
}

// endAnnouncement reports to the callers of Announce how it ended.
func (l *loop) endAnnouncement(err error) {
	if err == nil && l.announcing {
		l.report(Event{Kind: announced})
	}
	for _, c := range l.callers {
		c <- err // has room for one
	}
	l.announcing, l.callers, l.rounds, l.due = false, nil, nil, time.Time{}
}

// takeAsked returns the callers of Announce since the last takeAsked.
func (l *loop) takeAsked() []chan error {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	asked := l.r.asked
	l.r.asked = nil
	return asked
}
