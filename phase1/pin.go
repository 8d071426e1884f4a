package phase1

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
	"github.com/guestwire/guestwire/internal/syntax"
)

// PinError reports addresses that Pin has left out. The others are pinned.
type PinError struct {
	LeftOut []netip.Addr // in no order
	text    string
}

func (e *PinError) Error() string { return e.text }

// Pin is what [NIC.Pin] lets the guest connect to.
type Pin struct {
	// Addresses are the hosts, at least one.
	Addresses []netip.Addr

	// Ports are theirs, at least one range.
	Ports []infra.Ports

	// Life is how long the pin holds: 1 s to 7 days.
	Life time.Duration

	// Name is what FollowFlows calls the destination, such as the host's name that was asked for: at
	// most 253 printable characters of ASCII, without quotes and backslashes. nft(8) shows it as a
	// comment. Empty: no name.
	Name string
}

// Pin lets the guest open connections to the ports of the addresses for a time. Spec.Egress must end with "refuse all":
// Pin opens what that entry alone refuses. A port that Egress diverts needs no pin. If an address and port is pinned
// already, the longer life counts, with its name. A Setup whose list also ends with "refuse all" keeps the pins. A call
// can pin at most 1024 pairs of address and port, and a NIC can have 4096 in each family. No lock.
//
//	ErrNotWired        the namespace has no nftables table of this NIC
//	*PinError          EgressWithin or an earlier entry refuses an address
//	*PinError          the guest has no address of that family, or the address is not routed
//	*PinError          behind Masquerade, the address lies in the guest's own network
//	*cache.FieldError  a parameter is wrong, or Spec.Egress does not end with "refuse all"
//	others             the NIC has no room for so many pins
func (n NIC) Pin(ctx context.Context, p Pin) error {
	return n.failed("pin", n.pin(ctx, p))
}

const (
	minPinLife = time.Second
	maxPinLife = 7 * 24 * time.Hour
	maxPins    = 1024 // of one call
	maxPinName = 253  // that of a host
)

// isPinName reports whether a pin can have the name.
func isPinName(name string) bool {
	return len(name) <= maxPinName && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' })
}

func (n NIC) pin(ctx context.Context, p Pin) error {
	if life := p.Life; life < minPinLife || life > maxPinLife {
		return &cache.FieldError{Field: "life", Reason: fmt.Sprintf("%v, want a time of %v to %v", life, minPinLife, maxPinLife)}
	}
	if !isPinName(p.Name) {
		return &cache.FieldError{Field: "name", Reason: fmt.Sprintf("%.80q, want at most %d printable characters of ASCII, without quotes and backslashes", p.Name, maxPinName)}
	}
	pins, outside, err := pinsOf(p.Addresses, p.Ports)
	if err != nil {
		return err
	}
	var refused, lacking []netip.Addr
	err = n.inspect(func(ns *kernel.Namespace) (err error) {
		refused, lacking, err = ns.Tables.Pin(ctx, netstate.NamesFor(n.Name, "").Table, pins, p.Life, p.Name)
		return err
	})
	var other *nft.SetError
	switch {
	case errors.As(err, &other):
		return foreignSet(other)
	case errors.Is(err, nft.ErrNoTable):
		return fmt.Errorf("%w by nftables, or its rules are gone (Check reports that, and Setup creates them again)", ErrNotWired)
	case errors.Is(err, nft.ErrNoPins):
		return &cache.FieldError{Field: "egress", Reason: `the NIC is wired without a list that ends with "refuse all", so there is nothing to pin (or another program has removed the sets, which Check reports, and Setup creates again): give Setup such a list, under masquerade or routed, such as ["refuse link-local", "refuse metadata", "refuse all"]`}
	case errors.Is(err, nft.ErrPinsFull):
		return fmt.Errorf("%w: wait until some have ended, pin fewer ports, or allow the network in egress", err)
	case err != nil:
		return err
	}
	return unpinned(outside, refused, lacking)
}

// foreignSet is the error about a set that another program has changed.
func foreignSet(e *nft.SetError) error {
	return fmt.Errorf("%w, as another program has changed it: call Setup, which makes it anew (Check reports what differs)", e)
}

// unpinned is the error about the addresses that are not pinned.
func unpinned(outside, refused, lacking []netip.Addr) error {
	e := &PinError{LeftOut: slices.Concat(outside, refused, lacking)}
	if len(e.LeftOut) == 0 {
		return nil
	}
	var texts []string
	for _, why := range []struct {
		addresses []netip.Addr
		text      string
	}{
		{outside, "no unicast address that is routed"}, {refused, "refused by egressWithin, or by an entry of egress before the last, or in the guest's own network"}, {lacking, "the guest has no address of its family"},
	} {
		for _, a := range why.addresses {
			texts = append(texts, fmt.Sprintf("%v: %s", a, why.text))
		}
	}
	e.text = "not pinned: " + strings.Join(texts, "; ")
	return e
}

// pinsOf are all ports of all addresses. Outside are addresses that are not routed, which no name should lead to.
func pinsOf(addresses []netip.Addr, ports []infra.Ports) (pins []firewall.Pin, outside []netip.Addr, err error) {
	if len(addresses) == 0 {
		return nil, nil, &cache.FieldError{Field: "addresses", Reason: "none, want at least one"}
	}
	if len(ports) == 0 {
		return nil, nil, &cache.FieldError{Field: "ports", Reason: "none, want at least one, such as 443/tcp"}
	}
	for i, p := range ports {
		if reason := checkPinned(p); reason != "" {
			return nil, nil, &cache.FieldError{Field: fmt.Sprintf("ports[%d]", i), Reason: fmt.Sprintf("%v: %s", p, reason)}
		}
	}
	seen := map[firewall.Pin]bool{}
	for i, a := range addresses {
		if !a.IsValid() || a.Zone() != "" {
			return nil, nil, &cache.FieldError{Field: fmt.Sprintf("addresses[%d]", i), Reason: fmt.Sprintf("%v, want an address without zone", a)}
		}
		a = a.Unmap()
		if !a.IsGlobalUnicast() {
			outside = append(outside, a)
			continue
		}
		for _, p := range ports {
			p := syntax.Ports(p).Full()
			for port := int(p.First); port <= int(p.Last); port++ {
				pin := firewall.Pin{To: a, Protocol: firewall.Transports[p.Protocol], Port: uint16(port)}
				if !seen[pin] {
					pins = append(pins, pin)
				}
				seen[pin] = true
			}
			if len(pins) > maxPins {
				return nil, nil, &cache.FieldError{Field: "ports", Reason: fmt.Sprintf("more than %d ports of addresses in one call: name fewer, or allow the network in egress", maxPins)}
			}
		}
	}
	return pins, outside, nil
}

// checkPinned is what is wrong with the ports; empty: nothing.
func checkPinned(p infra.Ports) string {
	_, known := firewall.Transports[syntax.Ports(p).Full().Protocol]
	switch {
	case !known:
		return "unknown protocol, want tcp, udp or sctp"
	case p.First == 0 || p.Last != 0 && p.Last < p.First:
		return "want ports from 1 to 65535, the first one first"
	case p.Guest != 0:
		return fmt.Sprintf("a destination's port cannot become another one: leave :%d out", p.Guest)
	}
	return ""
}
