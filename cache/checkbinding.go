package cache

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// checkBinding checks the fields that depend on the binding.
func (r *Record) checkBinding() error {
	if !slices.Contains(bindings, r.Binding) {
		return fieldErrorf("binding", "%q, want one of %q", r.Binding, bindings)
	}
	if err := r.checkAbsent(); err != nil {
		return err
	}
	switch r.Binding {
	case BindingMacvtap:
		if r.Tap != r.Name {
			return fieldErrorf("tap", "%q, but the guest's tap is the macvtap %q itself: name that one", r.Tap, r.Name)
		}
		return nil
	case BindingSRIOV:
		return r.SRIOV.validate()
	case BindingPasst:
		return validateForwards(r.Binding, r.Passt.Forwards)
	case BindingSlirp:
		return r.checkSlirp()
	}
	return checkLinkName("tap", r.Tap)
}

// checkAbsent refuses fields that the binding cannot have.
func (r *Record) checkAbsent() error {
	const (
		unserved = "guestwire's responder does not serve the guest"
		noTap    = "there is no tap"
		card     = "the device is a function of the network card"
	)
	options := r.Options
	options.NoResponder = false
	for _, f := range []struct {
		name     string
		given    bool
		bindings []Kind // that cannot have it
		why      string
	}{
		{"responderTap", r.ResponderTap != "", attachedDirectly, unserved},
		{"ipv4", r.IPv4 != nil, attachedDirectly, unserved},
		{"ipv6", r.IPv6 != nil, attachedDirectly, unserved},
		{"macs", len(r.MACs) > 0, attachedDirectly, unserved},
		{"neighbours", len(r.Neighbours) > 0, attachedDirectly, unserved},
		{"dns", r.DNS != nil, []Kind{BindingMacvtap, BindingSRIOV, BindingPasst}, unserved},
		{"dns.servers", r.DNS != nil && len(r.DNS.Servers) > 0, []Kind{BindingSlirp}, "slirp is the guest's resolver, and asks those of QEMU's resolv.conf"},
		{"options", !reflect.ValueOf(options).IsZero(), attachedDirectly, unserved},
		{"tap", r.Tap != "", withoutTap, noTap},
		{"queues", r.Queues > 1, withoutTap, noTap},
		{"limits", r.Limits != Limits{}, attachedDirectly, "its frames pass no rules of guestwire"},
		{"role", r.Role != RoleActive, attachedDirectly, "guestwire has no tap that it could take down"},
		{"device.driver", r.Device.Driver == "vhost", []Kind{BindingPasst, BindingSlirp}, noTap},
		{"device.driver", r.Device.Driver != "", []Kind{BindingSRIOV}, card},
		{"device.model", r.Device.Model != "", []Kind{BindingSRIOV}, card},
		{"device.linkState", r.Device.LinkState != "", []Kind{BindingSRIOV}, card},
	} {
		if f.given && slices.Contains(f.bindings, r.Binding) {
			return fieldErrorf(f.name, "the %s binding cannot have this field, as %s: leave it out", r.Binding, f.why)
		}
	}
	for _, f := range []struct {
		name  Kind // as of the binding
		given bool
	}{{BindingSRIOV, r.SRIOV != nil}, {BindingPasst, r.Passt != nil}, {BindingSlirp, r.Slirp != nil}} {
		if f.given != (f.name == r.Binding) {
			return fieldErrorf(string(f.name), "want this field with the binding %s, and with no other", f.name)
		}
	}
	return nil
}

func (v *SRIOV) validate() error {
	if err := checkPCIAddress("sriov.pciAddress", v.PCIAddress); err != nil {
		return err
	}
	if v.VLAN > maxVLAN {
		return fieldErrorf("sriov.vlan", "%d, want 1 to %d, or 0 for none", v.VLAN, maxVLAN)
	}
	return nil
}

func (r *Record) checkSlirp() error {
	v4, v6 := r.Slirp.IPv4, r.Slirp.IPv6
	switch {
	case v4 == (netip.Prefix{}) && v6 == (netip.Prefix{}):
		return fieldErrorf("slirp", "neither ipv4 nor ipv6: want a network for the guest")
	case v4 != (netip.Prefix{}) && (!v4.Addr().Is4() || v4.Bits() < 8 || v4.Bits() > 27 || v4 != v4.Masked()):
		return fieldErrorf("slirp.ipv4", "%v, want an IPv4 network of /8 to /27, such as 10.0.2.0/24", v4)
	case v6 != (netip.Prefix{}) && (!v6.Addr().Is6() || v6.Addr().Is4In6() || v6.Bits() != 64 || v6 != v6.Masked()):
		return fieldErrorf("slirp.ipv6", "%v, want an IPv6 network of /64, such as fd10:0:2::/64", v6)
	case len(r.Slirp.Forwards) > 0 && !v4.IsValid():
		return fieldErrorf("slirp.forwards", "slirp forwards ports of IPv4 alone, and slirp.ipv4 is missing: leave this field out")
	}
	return validateForwards(r.Binding, r.Slirp.Forwards)
}

// validateForwards checks the forwards of the kind, whose name is that of their field as well.
func validateForwards(kind Kind, forwards []Forward) error {
	for i, f := range forwards {
		field := fmt.Sprintf("%s.forwards[%d]", kind, i)
		if f.Protocol != "tcp" && f.Protocol != "udp" {
			return fieldErrorf(field+".protocol", "%q, want tcp or udp: %s forwards no other protocol", f.Protocol, kind)
		}
		if f.First == 0 {
			return fieldErrorf(field+".first", "port 0, want 1 to 65535")
		}
		if f.Last < f.First {
			return fieldErrorf(field+".last", "%d-%d ends before it begins", f.First, f.Last)
		}
		if f.Guest == 0 || int(f.Guest)+int(f.Last-f.First) > 65535 {
			return fieldErrorf(field+".guest", "%d, want 1 to %d, so that the guest's ports for %d-%d end at 65535 at most", f.Guest, 65535-int(f.Last-f.First), f.First, f.Last)
		}
	}
	return nil
}
