// Package records has a record of each kind of network device, for the tests of the packages that describe one.
package records

import (
	"net/netip"

	"github.com/guestwire/guestwire/cache"
)

// Bridge returns a valid record of a guest with a tap. The other functions make it a record of another binding.
func Bridge() *cache.Record {
	return &cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450,
	}
}

// Macvtap makes the record one of macvtap.
func Macvtap(r *cache.Record) { r.Binding, r.Tap = cache.BindingMacvtap, r.Name }

// SRIOV makes the record one of a virtual function.
func SRIOV(r *cache.Record) {
	r.Binding, r.Tap, r.MTU, r.SRIOV = cache.BindingSRIOV, "", 0, &cache.SRIOV{PCIAddress: "0000:03:10.1"}
}

// Passt makes the record one of passt, which forwards the ports.
func Passt(r *cache.Record, forwards ...cache.Forward) {
	r.Binding, r.Tap, r.Passt = cache.BindingPasst, "", &cache.Passt{Forwards: forwards}
}

// Slirp makes the record one of slirp.
func Slirp(r *cache.Record) {
	r.Binding, r.Tap, r.MTU = cache.BindingSlirp, "", 1500
	r.Slirp = &cache.Slirp{IPv4: netip.MustParsePrefix("10.0.2.0/24"), IPv6: netip.MustParsePrefix("fd10:0:2::/64")}
}
