package dhcp

import (
	"log/slog"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"
)

// Event is something that the guest was told, or told us.
type Event struct {
	Time time.Time
	Kind Kind
	// Address is the guest's, or the one that it was refused or declined. It is not valid in
	// Advertised and Withdrawn, and in Informed6 where the guest has none.
	Address netip.Addr
}

// Kind is what happened. The numbers can change: only the names are to be kept.
type Kind uint8

const (
	nothing Kind = iota

	Offered4  // DHCPOFFER
	Leased4   // DHCPACK: the guest has the address
	Renewed4  // DHCPACK to a guest that had it
	Refused4  // DHCPNAK: the guest wanted another one
	Declined4 // DHCPDECLINE: the guest found somebody else using the address
	Released4 // DHCPRELEASE
	Informed4 // configuration for a guest that has its address from elsewhere

	Offered6   // ADVERTISE
	Leased6    // REPLY to SOLICIT or REQUEST
	Renewed6   // REPLY to RENEW or REBIND
	Confirmed6 // REPLY to CONFIRM: the guest's addresses are right
	Refused6   // REPLY to CONFIRM: they are not
	Declined6  // DECLINE
	Released6  // RELEASE
	Informed6  // configuration without an address

	Advertised // router advertisement
	Withdrawn  // the last router advertisement: no router here any more

	kinds
)

var kindText = [kinds]string{
	Offered4:   "DHCPv4 address offered",
	Leased4:    "DHCPv4 address leased",
	Renewed4:   "DHCPv4 lease renewed",
	Refused4:   "DHCPv4 request for another address refused",
	Declined4:  "DHCPv4 address declined by the guest: somebody else seems to have it",
	Released4:  "DHCPv4 address released by the guest",
	Informed4:  "DHCPv4 configuration told",
	Offered6:   "DHCPv6 address offered",
	Leased6:    "DHCPv6 address leased",
	Renewed6:   "DHCPv6 lease renewed",
	Confirmed6: "DHCPv6 address confirmed",
	Refused6:   "DHCPv6 address not confirmed",
	Declined6:  "DHCPv6 address declined by the guest: somebody else seems to have it",
	Released6:  "DHCPv6 address released by the guest",
	Informed6:  "DHCPv6 configuration told",
	Advertised: "router advertisement sent",
	Withdrawn:  "router advertisement withdrawn",
}

// String is the text of the log's line.
func (k Kind) String() string {
	if k == nothing || k >= kinds {
		return "event " + strconv.Itoa(int(k))
	}
	return kindText[k]
}

// MarshalText is String: so counters are JSON by their names.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func (k Kind) level() slog.Level {
	switch k {
	case Refused4, Declined4, Refused6, Declined6:
		return slog.LevelWarn
	case Offered4, Offered6, Advertised:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// event is what came of a frame; the zero event is nothing worth telling.
type event struct {
	kind    Kind
	address netip.Addr
}

// Counters are what a responder did since it was made.
type Counters struct {
	Received uint64          // frames that were read
	Sent     uint64          // frames that were written
	Failed   uint64          // reads and writes that failed
	Events   map[Kind]uint64 // how often; none: not at all
}

type counters struct {
	received, sent, failed atomic.Uint64
	events                 [kinds]atomic.Uint64
}

// Counters can be read at any time.
func (r *Responder) Counters() Counters {
	c := Counters{
		Received: r.counters.received.Load(),
		Sent:     r.counters.sent.Load(),
		Failed:   r.counters.failed.Load(),
		Events:   map[Kind]uint64{},
	}
	for k := nothing + 1; k < kinds; k++ {
		if n := r.counters.events[k].Load(); n > 0 {
			c.Events[k] = n
		}
	}
	return c
}
