package dhcp

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
)

// A gateway of the network can get another MAC: a router is replaced, a node's veth is made again. A guest that knows
// the gateway by its address finds that out by itself. A guest that knows a neighbour of the record in its place asks
// the responder, which asks the network. The kernel copies the answer, which is for the guest, to the responder.

// The responder asks for a station at most once in askPause. An answer with another MAC counts if the known MAC does
// not answer claimAsks more questions: else each host of the network could take the gateway's place.
const (
	askPause   = 1 * time.Second
	claimAsks  = 3 // MAX_MULTICAST_SOLICIT, RFC 4861 section 10
	claimPause = 330 * time.Millisecond
)

// claimFrames is the number of frames up to which the silence of the known MAC is believed. The responder's tap keeps
// 16 frames and drops more, so a neighbour that sends more than this in a second can have kept each answer out.
const claimFrames = 32

// station is a station of the network, whose MAC neighbours of the record have.
type station struct {
	mac      cache.MAC
	question []byte   // the frame that asks for it, as the guest
	tell     [][]byte // the frames that give the guest the MAC
}

// newStations returns the stations that the responder can follow.
func newStations(rec cache.Record) map[netip.Addr]station {
	all := map[netip.Addr]station{}
	if !rec.Announces() {
		return all
	}
	neighbours := newNeighbours(rec)
	for _, n := range rec.Neighbours {
		made, served := neighbours[n.Address]
		if !n.Station.IsValid() || !served {
			continue
		}
		s := all[n.Station]
		s.mac = n.MAC
		switch {
		case n.Station.Is6():
			source := eui64.LinkLocal(rec.MAC)
			if rec.IPv6 != nil {
				source = rec.IPv6.Address
			}
			s.question = frame.AppendSolicitation(nil, rec.MAC, source, n.Station)
		case rec.IPv4 != nil:
			s.question = arpFrame(frame.TypeARP, frame.ARPRequest, rec.MAC, rec.IPv4.Address.Addr(), cache.MAC{}, n.Station)
		}
		if n.Address.Is4() {
			s.tell = append(s.tell, announcement4(n.MAC, n.Address)...)
		} else {
			s.tell = append(s.tell, toAllNodes(nil, n.MAC, n.Address, made.unsolicited))
		}
		all[n.Station] = s
	}
	return all
}

// said returns what a frame of another MAC says of a station that the responder follows. It returns false if the frame
// is none that the kernel copies. A copy may say nothing that can be followed, such as the guest's own MAC.
func (r *answers) said(f frame.Ethernet, received []byte) (said result, copied bool) {
	var of netip.Addr
	switch f.Type {
	case frame.TypeARP:
		packet, _ := frame.ParseARP(f.Body)
		of = packet.Sender
	case frame.TypeIPv6:
		p, ok := frame.ParseIPv6(f.Body)
		if ok && p.Next == frame.ICMPv6 && len(p.Body) >= frame.NeighbourLen && p.Body[0] == frame.NeighbourAdvertisement {
			of = netip.AddrFrom16([16]byte(p.Body[8:frame.NeighbourLen]))
		}
	}
	if _, copied = r.stations[of]; !copied {
		return result{}, false
	}
	if a, ok := frame.ParseAnswer(received); ok && !r.guests.have(a.MAC) {
		said.said = a
	}
	return said, true
}

// moves are the MACs of stations that are not those of the record.
type moves map[netip.Addr]move

type move struct{ from, to cache.MAC }

// in returns the record with the MACs that its stations have. A record with another MAC than the one before is newer
// than the move.
func (m moves) in(rec cache.Record) cache.Record {
	rec.Neighbours = slices.Clone(rec.Neighbours)
	for i, n := range rec.Neighbours {
		to, moved := m[n.Station]
		if !moved || n.MAC != to.from {
			continue
		}
		rec.Neighbours[i].MAC = to.to
		if v6 := rec.IPv6; v6 != nil && v6.Router != nil && v6.Router.Address == n.Address {
			with, router := *v6, *v6.Router
			router.MAC, with.Router = to.to, &router
			rec.IPv6 = &with
		}
	}
	return rec
}

// claim is another MAC that answers for a station.
type claim struct {
	mac   cache.MAC
	asked int
	next  time.Time
	since uint64 // frames that were received before
	// answered: the MAC has said so again after a question.
	answered bool
}

// ask asks the network for the station.
func (l *loop) ask(s netip.Addr, now time.Time) {
	if question := l.answers.stations[s].question; question != nil && !l.answers.standby && now.Sub(l.asked[s]) >= askPause {
		l.asked[s] = now
		l.write(question)
	}
}

// consider takes what a station says of itself. The known MAC ends a claim, another one begins it.
func (l *loop) consider(said frame.Answer, now time.Time) {
	if said.MAC == l.answers.stations[said.Target].mac {
		delete(l.claims, said.Target)
		return
	}
	c, pending := l.claims[said.Target]
	if pending && c.asked > 0 && c.mac == said.MAC {
		c.answered = true
		l.claims[said.Target] = c
	}
	if !pending {
		l.claims[said.Target] = claim{mac: said.MAC, next: maxTime(now, l.asked[said.Target].Add(claimPause)), since: l.r.counters.received.Load()}
		l.settleClaims(now)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// settleClaims asks for the stations of the claims that are due. After the last question it believes a claim whose MAC
// has answered, unless other answers may be lost.
func (l *loop) settleClaims(now time.Time) {
	l.settle = time.Time{}
	for _, s := range slices.SortedFunc(maps.Keys(l.claims), netip.Addr.Compare) {
		c, known := l.claims[s], l.answers.stations[s]
		switch {
		case known.question == nil || l.answers.standby: // another record is served
			delete(l.claims, s)
			continue
		case now.Before(c.next):
		case c.asked < claimAsks:
			l.asked[s] = now
			l.write(known.question)
			c.asked, c.next = c.asked+1, now.Add(claimPause)
			l.claims[s] = c
		default:
			delete(l.claims, s)
			if c.answered && l.r.counters.received.Load()-c.since <= claimFrames {
				l.follow(s, c.mac)
			}
			continue
		}
		l.settle = earlier(l.settle, c.next)
	}
}

// follow gives the guest the MAC that the station has now.
func (l *loop) follow(s netip.Addr, mac cache.MAC) {
	if !l.r.move(s, mac) {
		return
	}
	l.load() // an Update may have come meanwhile
	for _, f := range l.answers.stations[s].tell {
		l.write(f)
	}
	l.report(Event{Kind: gatewayMoved, Address: s, MAC: mac})
}

// move changes the answers to another MAC of the station. It returns false if their record does not have the station.
func (r *Responder) move(s netip.Addr, mac cache.MAC) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.answers.Load()
	at := slices.IndexFunc(now.record.Neighbours, func(n cache.Neighbour) bool { return n.Station == s })
	if at < 0 {
		return false
	}
	moves := maps.Clone(r.moves)
	if moves == nil {
		moves = map[netip.Addr]move{}
	}
	moves[s] = move{now.record.Neighbours[at].MAC, mac}
	a, err := newAnswers(now.record, now.dns, moves)
	if err != nil { // the MAC is one that the record cannot have there
		return false
	}
	r.moves = moves
	r.answers.Store(a)
	return true
}
