// Package dhcp is the responder: it answers one guest's DHCPv4, DHCPv6, router solicitations, ARP and neighbour
// solicitations, as the record wants. The guest gets the same addresses whatever client identifier, DUID or IAID it
// sends. The responder reads and writes Ethernet frames, and needs no capability, address or socket. It answers frames
// from the guest's MACs alone, which are those of the record, each with one frame at most. If the guest asks for a
// gateway that can get another MAC, the responder also asks the network for it, as the guest would.
package dhcp

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestwire/guestwire/cache"
)

// Responder answers one guest. Its methods can be called at the same time. Set its fields before Serve.
type Responder struct {
	// Log gets the events that Notify gets. Offers and router advertisements are on the debug
	// level. It also gets warnings, such as of DNS servers that the guest cannot use. No frame
	// is answered until its handler returns. Nil discards.
	Log *slog.Logger

	// Notify is called with each event, in Serve's goroutine: no frame is answered until it
	// returns. Nil: no calls.
	Notify func(Event)

	answers  atomic.Pointer[answers]
	counters counters

	mu      sync.Mutex
	port    Port         // the port of a running Serve; nil: there is none
	asked   []chan error // callers of Announce that Serve has not taken yet
	updated bool         // Update was called, and Serve has not taken its answers yet
	moves   moves        // of the network's stations
}

// Port is the connection to the guest. It reads and writes whole Ethernet frames. An *os.File of an open tap is one, if
// the tap has no packet information and no vnet_hdr.
type Port interface {
	// Read reads one frame. After the deadline it returns os.ErrDeadlineExceeded.
	Read(b []byte) (n int, err error)

	// Write writes one frame. It does not wait for the guest.
	Write(b []byte) (n int, err error)

	// SetReadDeadline sets the deadline of Read, also of a Read that has begun. Zero: none.
	SetReadDeadline(t time.Time) error
}

// New makes a responder for a record. dns is what the guest gets: pass Record.DNS, or what a resolv.conf says.
// Record.DNS itself is not read. Servers and search domains that the guest could not use are left out, with a warning
// in Log. If the record is not valid, the error wraps a [*cache.FieldError]. A record without a ResponderTap is an
// error, too.
func New(rec cache.Record, dns cache.DNS) (*Responder, error) {
	a, err := newAnswers(rec, dns, nil)
	if err != nil {
		return nil, err
	}
	r := new(Responder)
	r.answers.Store(a)
	return r, nil
}

// Update replaces the record and the DNS configuration from the next frame on. Serve sends the new router advertisement
// at once. A DHCP client learns the rest with its next lease. The errors are those of [New], and then nothing has
// changed.
func (r *Responder) Update(rec cache.Record, dns cache.DNS) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, err := newAnswers(rec, dns, r.moves)
	if err != nil {
		return err
	}
	r.answers.Store(a)
	r.updated = true
	maps.DeleteFunc(r.moves, func(s netip.Addr, m move) bool { // the record has found the station elsewhere
		return !slices.ContainsFunc(rec.Neighbours, func(n cache.Neighbour) bool { return n.Station == s && n.MAC == m.from })
	})
	if r.port != nil {
		if err := r.port.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return fmt.Errorf("interrupt the port's read: %w", err)
		}
	}
	return nil
}

// Reply appends the answer to an Ethernet frame to dst, which must not overlap frame. If there is no answer, it returns
// dst as it is. Reply reads no clock and does no input or output.
func (r *Responder) Reply(dst, frame []byte) []byte {
	dst, _ = r.answers.Load().answer(dst, frame)
	return dst
}

// Counters returns the counters, also while Serve runs.
func (r *Responder) Counters() Counters {
	c := Counters{
		Received: r.counters.received.Load(),
		Sent:     r.counters.sent.Load(),
		Failed:   r.counters.failed.Load(),
		Events:   map[Kind]uint64{},
		Ignored:  map[Reason]uint64{},
	}
	for i := range kinds {
		if n := r.counters.events[i].Load(); n > 0 {
			c.Events[kinds[i].kind] = n
		}
	}
	for i, reason := range reasons {
		if n := r.counters.ignored[i].Load(); n > 0 {
			c.Ignored[reason] = n
		}
	}
	return c
}

// countIgnored counts a frame that was ignored.
func (r *Responder) countIgnored(why Reason) {
	r.counters.ignored[slices.Index(reasons[:], why)].Add(1)
}
