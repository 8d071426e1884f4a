package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/pinmessage"
	"github.com/guestwire/guestwire/internal/rate"
)

// limits are those of a server. Tests have others.
type limits struct {
	perSecond    int           // questions of the guest, also the burst
	waiting      int           // questions that wait for a resolver's answer
	asking       int           // questions to resolvers
	connections  int           // of TCP, of the guest
	names        int           // of an entry with "*." that have addresses
	answers      int           // that are kept
	octets       int           // of an answer without addresses that is kept
	attempt, all time.Duration // for a question to a resolver, and to all of them
	idle         time.Duration // of a connection
}

var defaults = limits{
	perSecond: 1000, waiting: 256, asking: 32, connections: 32, names: 128, answers: 8192, octets: largest,
	attempt: time.Second, all: 5 * time.Second, idle: 10 * time.Second,
}

func (l limits) full() limits {
	if l == (limits{}) {
		return defaults
	}
	return l
}

// ownLife is for which the guest keeps an answer that no resolver gave.
const ownLife = time.Minute

// server is the state of one Serve.
type server struct {
	log      *rate.Log
	counters *counters
	limits   limits
	guest    []netip.Prefix
	entries  entries
	upstream *resolvers
	pins     *pinner

	questions *rate.Limit
	waiting   chan struct{} // a place for each question that waits
	asking    chan struct{} // a place for each question to resolvers
	streams   streams
	tasks     sync.WaitGroup

	mu      sync.Mutex
	answers map[question]*kept
	named   map[int]map[string]time.Time // by entry: its names that have addresses, and until when these are pinned
}

// kept is an answer that is kept for its life, or that is looked for.
type kept struct {
	found chan struct{} // closed when the answer is there
	answer
}

func newServer(p *Proxy, list entries, upstream *resolvers, pins net.Conn) *server {
	l := p.limits.full()
	return &server{
		log: upstream.log, counters: &p.counters, limits: l, guest: p.Guest, entries: list, upstream: upstream,
		pins:      &pinner{conn: pins, replies: make(chan []byte)},
		questions: rate.New(l.perSecond, l.perSecond), waiting: make(chan struct{}, l.waiting), asking: make(chan struct{}, l.asking),
		streams: streams{most: l.connections, idle: map[net.Conn]time.Time{}}, answers: map[question]*kept{}, named: map[int]map[string]time.Time{},
	}
}

// run serves the sockets until ctx is done, or until one of them ends.
func (s *server) run(ctx context.Context, open sockets, end context.CancelCauseFunc) {
	s.tasks.Go(func() { end(s.pins.receiveAll(ctx)) })
	for _, c := range open.packets {
		s.tasks.Go(func() { end(s.servePackets(ctx, c)) })
	}
	for _, l := range open.streams {
		s.tasks.Go(func() { end(s.serveStreams(ctx, l)) })
	}
	<-ctx.Done()
	s.tasks.Wait()
}

// isGuest reports whether the guest sends from the address.
func (s *server) isGuest(from net.Addr) bool {
	if len(s.guest) == 0 {
		return true
	}
	var a netip.Addr
	switch from := from.(type) {
	case *net.UDPAddr:
		a = from.AddrPort().Addr()
	case *net.TCPAddr:
		a = from.AddrPort().Addr()
	}
	a = a.Unmap().WithZone("")
	if slices.ContainsFunc(s.guest, func(n netip.Prefix) bool { return n.Contains(a) }) {
		return true
	}
	s.log.Warn("a question is not the guest's", "from", a)
	return false
}

// admitted reports whether a question of the guest is answered now.
func (s *server) admitted() bool {
	if !s.questions.Allow() {
		s.counters.lost.Add(1)
		s.log.Warn("the guest asks too often: questions are lost")
		return false
	}
	return true
}

// servePackets answers the questions that come by UDP. Those that need a resolver are answered beside the others.
func (s *server) servePackets(ctx context.Context, c net.PacketConn) error {
	buffer := make([]byte, 1<<12)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if !s.isGuest(from) || !s.admitted() {
			continue
		}
		q, ok := parseQuery(buffer[:n])
		if !ok {
			continue
		}
		send := func(a answer) {
			s.counters.add(a)
			if reply := q.reply(a, time.Now(), q.size); reply != nil {
				c.WriteTo(reply, from) // the guest asks again
			}
		}
		if a, known := s.known(q); known {
			send(a)
			continue
		}
		select {
		case s.waiting <- struct{}{}:
			s.tasks.Go(func() {
				defer func() { <-s.waiting }()
				if a, err := s.find(ctx, q.question()); err == nil {
					send(a)
				}
			})
		default:
			s.counters.lost.Add(1)
			s.log.Warn("too many questions wait for resolvers: one is lost")
		}
	}
}

// asks are the types for which resolvers are asked.
var asks = []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeHTTPS, dnsmessage.TypeSVCB, dnsmessage.TypeMX, dnsmessage.TypeSRV, dnsmessage.TypeTXT}

var notListed = reason{blocked, "no entry of the names allows it"}

// known returns the answer to a query for which no resolver need be asked.
func (s *server) known(q query) (a answer, known bool) {
	if q.code != dnsmessage.RCodeSuccess {
		return answer{code: q.code}, true
	}
	asked := q.question()
	entry, found := s.entries.find(asked.name)
	isIN := q.asked[0].Class == dnsmessage.ClassINET
	if !found && isIN && s.upstream.searched(asked.name) {
		return answer{code: dnsmessage.RCodeNameError, why: notListed}, true // no SOA: the guest keeps it for no time (RFC 2308)
	}
	if !found || !isIN {
		s.log.Info("a name is refused: it is not in the list", "name", printable(asked.name), "type", q.asked[0].Type.String())
		return answer{code: dnsmessage.RCodeRefused, why: notListed}, true
	}
	if own := s.entries.list[entry].Addresses; own != nil {
		return ownAnswer(own, asked.kind), true
	}
	if !slices.Contains(asks, asked.kind) {
		return answer{}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.answers[asked]
	if k == nil || !k.ready() || time.Until(k.until) <= 0 {
		return answer{}, false
	}
	return k.answer, true
}

// ready reports whether the answer is there.
func (k *kept) ready() bool {
	select {
	case <-k.found:
		return true
	default:
		return false
	}
}

// printable is the name for a log, in which the guest writes nothing but letters, digits and dots.
func printable(name string) string {
	if quoted := strconv.QuoteToASCII(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// ownAnswer is the answer about a name of one's own.
func ownAnswer(addresses []netip.Addr, kind dnsmessage.Type) answer {
	a := answer{until: time.Now().Add(ownLife)}
	for _, to := range addresses {
		switch {
		case to.Is4() && kind == dnsmessage.TypeA:
			a.bodies = append(a.bodies, &dnsmessage.AResource{A: to.As4()})
		case to.Is6() && kind == dnsmessage.TypeAAAA:
			a.bodies = append(a.bodies, &dnsmessage.AAAAResource{AAAA: to.As16()})
		}
	}
	return a
}

// find returns the answer that resolvers give. Several who ask at the same time get the same one. The error is that of
// ctx.
func (s *server) find(ctx context.Context, asked question) (answer, error) {
	s.mu.Lock()
	k := s.answers[asked]
	if k != nil && (!k.ready() || time.Until(k.until) > 0) {
		s.mu.Unlock()
		select {
		case <-k.found:
			return k.answer, ctx.Err()
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
	if k == nil && len(s.answers) >= s.limits.answers && !s.makeRoom() {
		s.mu.Unlock()
		s.log.Warn("too many answers are kept: a question fails")
		return answer{code: dnsmessage.RCodeServerFailure}, nil
	}
	k = &kept{found: make(chan struct{})}
	s.answers[asked] = k
	s.mu.Unlock()
	select {
	case s.asking <- struct{}{}:
		k.answer = s.resolve(ctx, asked)
		<-s.asking
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(k.found)
	if !k.until.After(time.Now()) {
		delete(s.answers, asked)
	}
	return k.answer, ctx.Err()
}

// makeRoom forgets answers whose life has ended, or, if there are none, those without addresses. No other: a name whose
// answer was forgotten would get more pins.
func (s *server) makeRoom() bool {
	now := time.Now()
	s.forget(func(a answer) bool { return !a.until.After(now) })
	if len(s.answers) >= s.limits.answers {
		s.forget(func(a answer) bool {
			return len(a.bodies) == 0 || !addressOf(a.bodies[0]).IsValid()
		})
	}
	return len(s.answers) < s.limits.answers
}

// forget forgets the answers that f names. The caller has the lock.
func (s *server) forget(f func(answer) bool) {
	for asked, k := range s.answers {
		if k.ready() && f(k.answer) {
			delete(s.answers, asked)
		}
	}
}

// resolve asks the resolvers, and has the addresses pinned.
func (s *server) resolve(ctx context.Context, asked question) answer {
	found, err := s.upstream.ask(ctx, asked)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("resolvers do not answer", "name", asked.name, "type", asked.kind.String(), "error", err)
		}
		return failure(unreachable, "resolvers do not answer")
	}
	if isAddress(asked.kind) {
		return s.pinned(ctx, asked, found)
	}
	a := answer{code: found.code, bodies: found.bodies}
	if len(a.bodies) <= pinmessage.MostAddresses && octets(a) <= s.limits.octets { // a name in a record has 256 octets of memory
		a.until = time.Now().Add(found.life)
	}
	return a
}

func failure(code uint16, text string) answer {
	return answer{code: dnsmessage.RCodeServerFailure, until: time.Now().Add(pinmessage.Shortest), why: reason{code, text}}
}

// octets are those that the answer has as a message.
func octets(a answer) int {
	name := dnsmessage.MustNewName(".")
	q := query{asked: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET}}}
	return len(q.reply(a, time.Now(), 1<<16-1))
}

// pinned is the answer with those of the found addresses that are pinned.
func (s *server) pinned(ctx context.Context, asked question, found response) answer {
	entry, _ := s.entries.find(asked.name)
	r := pinmessage.Request{Name: entry, Life: found.life}
	var forbidden []netip.Addr
	for _, body := range found.bodies {
		if to := addressOf(body); pinmessage.Allowed(to, s.entries.list[entry].Private, s.entries.nat64) {
			r.Addresses = append(r.Addresses, to)
		} else {
			forbidden = append(forbidden, to)
		}
	}
	var pins []netip.Addr
	if len(r.Addresses) > 0 {
		err := s.count(entry, asked.name, found.life)
		if err == nil {
			pins, err = s.pins.pin(ctx, r)
		}
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("an answer is not pinned", "name", asked.name, "error", err)
			}
			return failure(blocked, "the addresses cannot be pinned now")
		}
	}
	if len(forbidden) > 0 {
		s.log.Warn("addresses are left out: the name's entry is not private, or they are no station's of a network", "name", asked.name, "addresses", forbidden)
	}
	a := answer{code: found.code, until: time.Now().Add(found.life)} // which begins with the pins'
	if len(pins) == 0 && len(r.Addresses) > 0 {
		a.until = time.Now().Add(pinmessage.Shortest) // egress refuses them all, and a Setup may change that
	}
	for _, body := range found.bodies {
		if slices.Contains(pins, addressOf(body)) {
			a.bodies = append(a.bodies, body)
		}
	}
	if len(a.bodies) < len(found.bodies) {
		a.why = reason{blocked, "addresses are left out"}
	}
	return a
}

var errNames = errors.New("too many names of the entry have addresses")

// count counts the name among those of an entry with "*.", until its pins end.
func (s *server) count(entry int, name string, life time.Duration) error {
	pattern := s.entries.list[entry].Name
	if pattern == name {
		return nil
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.named[entry]
	if names == nil {
		names = map[string]time.Time{}
		s.named[entry] = names
	}
	until, has := names[name]
	if !has && len(names) >= s.limits.names {
		for other, until := range names {
			if !until.After(now) {
				delete(names, other)
			}
		}
		if len(names) >= s.limits.names {
			return fmt.Errorf("%s: %w: %d", pattern, errNames, len(names))
		}
	}
	if end := now.Add(life + pinmessage.Grace); end.After(until) {
		names[name] = end
	}
	return nil
}
