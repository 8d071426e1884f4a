package dhcp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

// Event is an answer to the guest, a message of the guest, or a fault. Events are limited: of each kind there are 20 at
// once (5 of other-mac-seen, read-failed and write-failed), and after that one every 10 s.
type Event struct {
	Time time.Time
	Kind Kind

	// Text is a sentence for people. It can change in a later version.
	Text string

	// Address is the guest's address, the first of several. It can also be the address that the
	// guest was refused, has declined or has released. It is valid with the kinds of DHCPv4 and
	// DHCPv6, except dhcpv6-informed. With gateway-moved it is the gateway's.
	Address netip.Addr

	// MAC is the frame's source, with other-mac-seen, and the gateway's, with gateway-moved. With
	// other kinds it is zero.
	MAC cache.MAC

	// Held is the number of events of this kind that were held back before this one.
	Held uint64

	// Err is the error of the port, with read-failed and write-failed. With other kinds it is
	// nil.
	Err error
}

// Kind is the kind of an event: a name for programs, which does not change. Compare it as in e.Kind == "dhcpv4-leased".
//
//	dhcpv4-offered     DHCPOFFER
//	dhcpv4-leased      DHCPACK: the guest has the address
//	dhcpv4-renewed     DHCPACK to a guest that had it
//	dhcpv4-refused     DHCPNAK: the guest asked for another address
//	dhcpv4-declined    DHCPDECLINE: a station of the network answers for the guest's address
//	dhcpv4-released    DHCPRELEASE
//	dhcpv4-informed    DHCPACK to DHCPINFORM: configuration without an address
//	dhcpv6-offered     ADVERTISE
//	dhcpv6-leased      REPLY to SOLICIT or REQUEST
//	dhcpv6-renewed     REPLY to RENEW or REBIND
//	dhcpv6-confirmed   REPLY to CONFIRM: the guest's addresses are right
//	dhcpv6-refused     REPLY to CONFIRM: an address is not right
//	dhcpv6-declined    DECLINE: a station of the network answers for the guest's address
//	dhcpv6-released    RELEASE
//	dhcpv6-informed    REPLY without an address
//	no-dhcpv6          the guest solicits routers, and asks for no DHCPv6
//	router-advertised  router advertisement
//	router-withdrawn   the last router advertisement, which ends the router's lifetime
//	gateway-moved      a gateway of the network has another MAC, and the guest gets it
//	announced          the guest's place is announced, by Announce or at the end of a standby
//	other-mac-seen     a frame whose source is no MAC of the record; it is ignored
//	read-failed        the port cannot be read; Serve tries again
//	write-failed       a frame cannot be sent, for example because the tap is down
type Kind string

const (
	offered4     Kind = "dhcpv4-offered"
	leased4      Kind = "dhcpv4-leased"
	renewed4     Kind = "dhcpv4-renewed"
	refused4     Kind = "dhcpv4-refused"
	declined4    Kind = "dhcpv4-declined"
	released4    Kind = "dhcpv4-released"
	informed4    Kind = "dhcpv4-informed"
	offered6     Kind = "dhcpv6-offered"
	leased6      Kind = "dhcpv6-leased"
	renewed6     Kind = "dhcpv6-renewed"
	confirmed6   Kind = "dhcpv6-confirmed"
	refused6     Kind = "dhcpv6-refused"
	declined6    Kind = "dhcpv6-declined"
	released6    Kind = "dhcpv6-released"
	informed6    Kind = "dhcpv6-informed"
	noDHCP6      Kind = "no-dhcpv6"
	advertised   Kind = "router-advertised"
	withdrawn    Kind = "router-withdrawn"
	gatewayMoved Kind = "gateway-moved"
	announced    Kind = "announced"
	otherMACSeen Kind = "other-mac-seen"
	readFailed   Kind = "read-failed"
	writeFailed  Kind = "write-failed"
)

// kinds has each kind once. The index is that of the counter and of the limiter.
var kinds = [...]struct {
	kind  Kind
	text  string
	level slog.Level
	burst int // events before the limit
}{
	{offered4, "DHCPv4 address offered", slog.LevelDebug, 20},
	{leased4, "DHCPv4 address leased", slog.LevelInfo, 20},
	{renewed4, "DHCPv4 lease renewed", slog.LevelInfo, 20},
	{refused4, "DHCPv4 request for another address refused", slog.LevelWarn, 20},
	{declined4, "DHCPv4 address declined by the guest: a station of the network answers for it, a duplicate or an ARP proxy", slog.LevelWarn, 20},
	{released4, "DHCPv4 address released by the guest", slog.LevelInfo, 20},
	{informed4, "DHCPv4 configuration sent", slog.LevelInfo, 20},
	{offered6, "DHCPv6 address offered", slog.LevelDebug, 20},
	{leased6, "DHCPv6 address leased", slog.LevelInfo, 20},
	{renewed6, "DHCPv6 lease renewed", slog.LevelInfo, 20},
	{confirmed6, "DHCPv6 address confirmed", slog.LevelInfo, 20},
	{refused6, "DHCPv6 address not confirmed", slog.LevelWarn, 20},
	{declined6, "DHCPv6 address declined by the guest: a station of the network answers for it, a duplicate or an NDP proxy", slog.LevelWarn, 20},
	{released6, "DHCPv6 address released by the guest", slog.LevelInfo, 20},
	{informed6, "DHCPv6 configuration sent", slog.LevelInfo, 20},
	{noDHCP6, "the guest solicits routers and asks for no DHCPv6: it has no IPv6 address of this NIC, unless it is configured with one", slog.LevelWarn, 20},
	{advertised, "router advertisement sent", slog.LevelDebug, 20},
	{withdrawn, "router advertisement withdrawn", slog.LevelInfo, 20},
	{gatewayMoved, "a gateway of the network has another MAC, and the guest gets it", slog.LevelInfo, 20},
	{announced, "the guest's place announced", slog.LevelInfo, 20},
	{otherMACSeen, "another MAC than the record's speaks on the tap", slog.LevelWarn, 5},
	{readFailed, "read from the port", slog.LevelWarn, 5},
	{writeFailed, "write to the port", slog.LevelWarn, 5},
}

// indexOf returns the index of a kind in kinds; -1: there is none, which TestNames refuses.
func indexOf(k Kind) int {
	for i := range kinds {
		if kinds[i].kind == k {
			return i
		}
	}
	return -1
}

// result is what a frame causes in addition to its answer: an event, or the reason why the frame is ignored. A frame
// that is not ignored has an answer, an event or both.
type result struct {
	kind    Kind // empty: no event
	address netip.Addr
	ignored Reason // empty: not ignored

	asks netip.Addr   // the station that the network is asked for; zero: none
	said frame.Answer // what a station of the network says of itself, in a frame that is not the guest's
}

// sentence adds to the text of an event's kind what is known of this event.
func (e Event) sentence(text string, guest cache.MAC) string {
	switch {
	case e.Kind == otherMACSeen:
		return fmt.Sprintf("%s: the guest of the record is %v, this is %v; start the VM with mac=%v, or add that of a bridge in the guest to guard.macs", text, guest, e.MAC, guest)
	case e.Kind == gatewayMoved:
		return fmt.Sprintf("%s: %v is at %v", text, e.Address, e.MAC)
	case e.Err != nil:
		return text + ": " + e.Err.Error()
	}
	return text
}

// Counters count since New. A kind without events is not in Events, and a reason without frames is not in Ignored.
type Counters struct {
	Received uint64 `json:"received"` // frames that were read
	Sent     uint64 `json:"sent"`     // frames that were written
	Failed   uint64 `json:"failed"`   // reads and writes that failed

	// Events are the events by their kind, with those that were held back.
	Events map[Kind]uint64 `json:"events"`

	// Ignored are the received frames that were ignored, by the reason.
	Ignored map[Reason]uint64 `json:"ignored"`
}

type counters struct {
	received, sent, failed atomic.Uint64
	events                 [len(kinds)]atomic.Uint64
	ignored                [len(reasons)]atomic.Uint64
}
