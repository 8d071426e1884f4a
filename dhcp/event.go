package dhcp

import (
	"log/slog"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"
)

// Event is an answer to the guest, or a message of the guest, that matters to who runs the guest.
type Event struct {
	Time time.Time
	Kind Kind
	// Address is the guest's address, or the one that the guest was refused or has declined. It is
	// not valid with Advertised, Withdrawn and Informed6.
	Address netip.Addr
}

// Kind is the kind of an event. The numbers can change in a later version; store the texts instead.
type Kind uint8

const (
	nothing Kind = iota

	Offered4  // DHCPOFFER
	Leased4   // DHCPACK: the guest has the address
	Renewed4  // DHCPACK to a guest that had it
	Refused4  // DHCPNAK: the guest asked for another address
	Declined4 // DHCPDECLINE: the guest found another station that uses the address
	Released4 // DHCPRELEASE
	Informed4 // DHCPACK to DHCPINFORM: configuration without an address

	Offered6   // ADVERTISE
	Leased6    // REPLY to SOLICIT or REQUEST
	Renewed6   // REPLY to RENEW or REBIND
	Confirmed6 // REPLY to CONFIRM: the guest's addresses are right
	Refused6   // REPLY to CONFIRM: an address is not right
	Declined6  // DECLINE: the guest found another station that uses the address
	Released6  // RELEASE
	Informed6  // REPLY without an address

	Advertised // router advertisement
	Withdrawn  // the last router advertisement, which ends the router's lifetime

	kinds
)

var kindText = [kinds]string{
	Offered4:   "DHCPv4 address offered",
	Leased4:    "DHCPv4 address leased",
	Renewed4:   "DHCPv4 lease renewed",
	Refused4:   "DHCPv4 request for another address refused",
	Declined4:  "DHCPv4 address declined by the guest: another station seems to use it",
	Released4:  "DHCPv4 address released by the guest",
	Informed4:  "DHCPv4 configuration told",
	Offered6:   "DHCPv6 address offered",
	Leased6:    "DHCPv6 address leased",
	Renewed6:   "DHCPv6 lease renewed",
	Confirmed6: "DHCPv6 address confirmed",
	Refused6:   "DHCPv6 address not confirmed",
	Declined6:  "DHCPv6 address declined by the guest: another station seems to use it",
	Released6:  "DHCPv6 address released by the guest",
	Informed6:  "DHCPv6 configuration told",
	Advertised: "router advertisement sent",
	Withdrawn:  "router advertisement withdrawn",
}

// String returns the text that the log has for the event.
func (k Kind) String() string {
	if k == nothing || k >= kinds {
		return "event " + strconv.Itoa(int(k))
	}
	return kindText[k]
}

// MarshalText returns String, so that Counters have texts in JSON.
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

// event is the event that a frame causes; the zero event: none.
type event struct {
	kind    Kind
	address netip.Addr
}

// Counters count what a responder has done since it was made.
type Counters struct {
	Received uint64          // frames that were read
	Sent     uint64          // frames that were written
	Failed   uint64          // reads and writes that failed
	Events   map[Kind]uint64 // events of each kind; a kind without events is not in the map
}

type counters struct {
	received, sent, failed atomic.Uint64
	events                 [kinds]atomic.Uint64
}

// Counters returns the counters, also while Serve runs.
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
