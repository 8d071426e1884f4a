package compare

import (
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// State is how a namespace must look: the links of one NIC's wiring and what hangs on them, and nothing
// else. A link that must be created has a negative index, one of those below, until the comparison gives it
// one.
type State struct {
	// Links end with the guest's tap, if there is one: it comes up when everything else is there.
	Links      []netstate.Link
	Addresses  []netstate.Address
	Routes     []netstate.Route
	Neighbours []netstate.Neighbour
	Filters    []netstate.Filter
	Tables     []firewall.Table
	// UptimeMS is the Snapshot.UptimeMS at which the lifetimes of Addresses and Routes were left.
	UptimeMS int64
	// LateLinkLocal: the NIC had no carrier when it was found, so the kernel makes its link-local address when it gets
	// one.
	LateLinkLocal bool
	// OffStack are addresses of the NIC that the namespace must not take as its own.
	OffStack []netstate.OffStack
	// Unwanted are addresses and routes to remove from a NIC whose other addresses stay.
	Unwanted Gone
	Sysctls  map[string]string
	// TapContext is the SELinux context of taps that must be created. The kernel does not report the context of a tap
	// that is there.
	TapContext string
}

// Gone are addresses and routes that a wiring replaces, or has put there.
type Gone struct {
	Addresses []netstate.Address `json:"addresses,omitempty"`
	Routes    []netstate.Route   `json:"routes,omitempty"`
}

// Indices of links that must be created.
const (
	NewHolder = -1 - iota
	NewBridge
	NewTap
	NewResponder
)
