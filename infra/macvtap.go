package infra

import "github.com/guestwire/guestwire/cache"

// Macvtap gives the guest the NIC, which is a macvtap already, with its MAC. The launcher's user needs the macvtap's
// character device (numbers: /sys/class/net/NIC/macvtap/tapINDEX/dev), to read and to write, as /dev/tapINDEX in the
// launcher's own /dev: the machine's /dev/tapINDEX may belong to a macvtap of another namespace.
type Macvtap struct{}

func (Macvtap) Kind() cache.Kind              { return cache.BindingMacvtap }
func (Macvtap) validate() error               { return nil }
func (b Macvtap) validateGuard(g Guard) error { return g.loosensNothing(b) }
