package infra

import "github.com/guestwire/guestwire/cache"

// Macvtap gives the guest the NIC, which is a macvtap already: the guest has the NIC's MAC, on the network of the link
// below the NIC. guestwire brings the NIC up, and lets it receive all multicast groups.
//
// The program that made the macvtap also gives the launcher's user the macvtap's character device, to read and to
// write: the node /dev/tapINDEX, with the NIC's index, in the launcher's own /dev. The node has the device numbers that
// /sys/class/net/NIC/macvtap/tapINDEX/dev shows in the namespace. The machine's own /dev/tapINDEX may belong to a
// macvtap in another namespace that has the same index.
type Macvtap struct{}

// Kind is cache.BindingMacvtap.
func (Macvtap) Kind() cache.Kind              { return cache.BindingMacvtap }
func (Macvtap) validate() error               { return nil }
func (b Macvtap) validateGuard(g Guard) error { return g.loosensNothing(b) }
