package wiring

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// partialRoutes report what of the namespace goes on without the guest.
func (s *seen) partialRoutes() (list texts) {
	for _, r := range s.found.Routes {
		if r.Uses(s.nic.Index) && slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return h.Link != s.nic.Index }) {
			list.add("the route to %v leads through other links too: the namespace is without it until Teardown", r.Destination)
		}
	}
	return list
}

// duplicates report the NIC's addresses that another station has.
func (s *seen) duplicates() (list texts) {
	for _, a := range s.found.Addresses {
		if a.Link == s.nic.Index && a.Duplicate {
			list.add("%v of %s is a duplicate (dadfailed): another station of the network has it, and the namespace does not use it: give one of the two another address", a.Prefix.Addr(), s.nic.Name)
		}
	}
	return list
}

// texts are sentences for an administrator.
type texts []string

func (t *texts) add(format string, args ...any) { *t = append(*t, fmt.Sprintf(format, args...)) }

// warn adds a sentence to the record.
func (p *Plan) warn(format string, args ...any) { p.addWarnings(fmt.Sprintf(format, args...)) }

// addWarnings adds sentences to the record.
func (p *Plan) addWarnings(list ...string) { p.Record.Warnings = append(p.Record.Warnings, list...) }

// warnUnfiltered warns of what the guest can do without a filter, unless the guard is off: then the caller
// knows.
func (s *seen) warnUnfiltered(what string) (list texts) {
	if !s.spec.Guard.Off {
		list.add("no filter lies between the guest and its network: %s; set guard.off to accept that", what)
	}
	return list
}

// warnNotServed warns of addresses that no responder of guestwire gives to the guest.
func (s *seen) warnNotServed() (list texts) {
	if len(s.own) > 0 {
		list.add("guestwire does not give the guest the addresses %[2]v of %[1]s: the guest gets them from that network, or is configured with them", s.nic.Name, slices.Concat(s.v4, s.v6))
	}
	return list
}

// warnModel warns of what QEMU and libvirt cannot do with a device that is not virtio. Another VMM may have a device
// that can.
func warnModel(r *cache.Record) (list texts) {
	model := r.Device.Model
	if model == "" || strings.HasPrefix(model, "virtio") {
		return nil
	}
	refused := func(what string, is bool) {
		if is {
			list.add("device.model is %s, which QEMU and libvirt refuse together with %s: leave one of them out", model, what)
		}
	}
	refused("queues", r.Queues > 1)
	refused("binding.passt.vhostUser", r.Passt != nil && r.Passt.VhostUser)
	refused("device.driver vhost", r.Device.Driver == "vhost")
	return list
}
