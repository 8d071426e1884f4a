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
	Addresses []netstate.Address
	Routes    []netstate.Route
}

// Indices of links that must be created.
const (
	NewHolder = -1 - iota
	NewBridge
	NewTap
	NewResponder
)

// NIC is the NIC of a wiring, and what of it the wiring may change.
type NIC struct {
	Names netstate.Names
	Index int // as found
	// ManageAddresses: the NIC's addresses, routes and neighbours are the wiring's to add and to remove.
	ManageAddresses bool
	// RestoreAddresses: missing addresses, routes and permanent neighbours of the NIC are added, also without
	// ManageAddresses.
	RestoreAddresses bool
	// MayLeave: the NIC can go away, because the guest has it.
	MayLeave bool
	// NamedTap is the guest's tap, where the caller has named it; nil: its name is made of the NIC's. Another program
	// may make a tap with a name such as tap0.
	NamedTap *netstate.Tap
	// Direct: the wiring creates no link and no table.
	Direct bool
	// OffStack: the wiring takes the NIC's addresses off the namespace's stack.
	OffStack bool
	// AllMulticast: the wiring made the NIC receive all multicast groups. Raised: the wiring brought it up.
	AllMulticast, Raised bool
}
