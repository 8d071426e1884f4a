package infra

import "github.com/guestwire/guestwire/cache"

// Macvtap gives the guest the NIC, which is a macvtap already, with its MAC. Setup brings the NIC up and lets it
// receive all multicast groups.
//
// The launcher's user needs the macvtap's character device, as /dev/tapINDEX in the launcher's own /dev, to read and to
// write. INDEX is the NIC's index. /sys/class/net/NIC/macvtap/tapINDEX/dev has the device's numbers. The machine's own
// /dev/tapINDEX may belong to a macvtap of another namespace.
type Macvtap struct{}

func (Macvtap) Kind() cache.Kind              { return cache.BindingMacvtap }
func (Macvtap) validate() error               { return nil }
func (b Macvtap) validateGuard(g Guard) error { return g.loosensNothing(b) }
