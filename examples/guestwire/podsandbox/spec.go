package podsandbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// Defaults is what holds for each NIC of a CNI list, and what a pod may change of it.
type Defaults struct {
	// Spec is an infra.Spec without NIC and State. With a Binding, each NIC of the list is wired unless the pod says
	// none.
	Spec infra.Spec
	// HasOwner says that Spec.Owner was given. Without it the owner is user 107, group 107, in the pod's own numbers.
	HasOwner bool
	// TrustPods lets a pod say more than an ordinary restricted pod could do by itself. Without it a pod may not say
	//
	//	guard           what keeps the guest from being another station; a restricted pod has no raw sockets
	//	limits          of the guest's traffic, which are the operator's
	//	flows           whether the operator can log the guest's connections
	//	egressWithin    which is the list's; a pod's egress narrows what the list allows, see permitEgress
	//	egress that diverts to a port of the pod, unless the list's egressWithin names the port
	//	names           if the list has names: they are a part of what its egress allows, and so is that egress then
	//	dns             if the list's egress names resolvers; if the list has names, or bounds the pod's: whoever
	//	                answers the DNS proxy chooses the addresses to which the guest may connect
	//	tap             the name of the guest's tap, which the pod's other programs may take for their own link
	//	owner.selinux   the context of the taps, which is the node's to give
	//	macvtap, sriov  bindings without a filter, for NICs that are a part of the node's card: a macvtap's guest can
	//	                send with any MAC, and a sriov record names a PCI address and a VLAN
	//	mac of bridge, redirect, auto   the guest's on the node's network: another station's, or one that a restricted
	//	                pod could not give to its NIC
	//	masquerade.firewall        iptables load kernel modules and take a lock of the node
	//	maxConnections             above that of the list, or infra.DefaultMaxConnections: each connection costs the
	//	                node memory and time that no limit of the pod counts
	//	mtu above that of the list
	//	more than MaxWish bytes    30,000 ports took a core of the node for 40 s, to wire
	//
	// except by the word of the binding that the list has, which means the list's own. A pod may say everything else:
	// the bindings bridge, redirect, masquerade, routed, auto, passt and slirp with their ports and networks, the MACs
	// of a masquerade, of passt and of slirp, guest, queues, mtu, dns, options, device, and owner but selinux. This
	// changes the pod's own namespace, or what its own guest gets. A path in device.rom is opened by the pod's
	// launcher, with the pod's rights. passt's sysctls are those that Kubernetes counts as safe.
	TrustPods bool
}

// MaxWish is the length in bytes of what a pod may say of one NIC, unless it is trusted: about 500 ports, or all of the
// other fields.
const MaxWish = 4096

// MaxEgress is the number of entries that a pod may say, unless it is trusted. If half of them have ports, they make
// some 2,000 ranges a family of the other half.
const MaxEgress = 64

// defaultOrder is what auto tries: under bridge CNI's CHECK would fail for ever.
var defaultOrder = []cache.Kind{cache.BindingRedirect, cache.BindingRouted, cache.BindingMasquerade}

// ReadDefaults reads the member spec of an entry of a CNI list; nil: nothing is wanted unless a pod says so. The error
// is a *cache.FieldError.
func ReadDefaults(text json.RawMessage, trustPods bool) (Defaults, error) {
	d := Defaults{TrustPods: trustPods}
	if text == nil {
		return d, nil
	}
	if err := json.Unmarshal(text, &d.Spec); err != nil {
		return d, within(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return d, within(err)
	}
	if _, ok := fields["state"]; ok {
		return d, within(&cache.FieldError{Field: "state", Reason: "not here: the entry has state beside spec"})
	}
	if _, ok := fields["for"]; ok {
		return d, within(&cache.FieldError{Field: "for", Reason: "not here: a NIC is wired for the network that the list names"})
	}
	var hasBinding bool
	_, d.HasOwner = fields["owner"]
	_, hasBinding = fields["binding"]
	d.Spec.Owner.Inside = d.HasOwner && (d.Spec.Owner.Inside || !saysInside(fields["owner"]))
	complete := d
	if !hasBinding {
		complete.Spec.Binding = infra.Redirect{}
		if len(d.Spec.Egress)+len(d.Spec.EgressWithin) > 0 { // the pods have to say a binding that keeps it
			complete.Spec.Binding = infra.Routed{}
		}
	}
	if d.Spec.DNS == nil && hasResponder(complete.Spec) { // that of a pod, or of the plugins before, is not known yet
		complete.Spec.DNS = &cache.DNS{Servers: []netip.Addr{netip.IPv6Loopback()}}
	}
	_, _, err := complete.Make(nil, nil)
	return d, err
}

// hasResponder reports whether guestwire answers the guest, and can say DNS servers.
func hasResponder(spec infra.Spec) bool {
	switch spec.Binding.(type) {
	case infra.Macvtap, infra.SRIOV, infra.Passt, infra.Slirp:
		return false
	}
	return !spec.Options.NoResponder
}

// servedDNS is the list's DNS, as far as the guest of a pod's binding gets it.
func servedDNS(spec infra.Spec) *cache.DNS {
	switch spec.Binding.(type) {
	case infra.Macvtap, infra.SRIOV, infra.Passt:
		return nil
	case infra.Slirp:
		if spec.DNS == nil || len(spec.DNS.Search) == 0 {
			return nil
		}
		return &cache.DNS{Search: spec.DNS.Search}
	}
	return spec.DNS
}

// saysInside reports whether the JSON of an owner has the member inside. Without it the numbers are the pod's own:
// where the pod has no user namespace, these are the node's.
func saysInside(owner json.RawMessage) bool {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(owner, &members) // was read as a Spec before
	_, ok := members["inside"]
	return ok
}

// Make returns what is wanted of a NIC. A nil wish means that the pod says nothing. Wanted is false if the NIC must
// stay as it is. State is left to the caller. Dns returns the DNS of a guest if neither list nor pod says it; nil:
// there is none. Its argument reports whether a DNS proxy may ask the servers that the pod has chosen. The error is a
// *WishError for a pod's mistake, and a *cache.FieldError, below "spec", for one of the list.
func (d Defaults) Make(w *Wish, dns func(proxy bool) (*cache.DNS, error)) (spec infra.Spec, wanted bool, err error) {
	spec = d.Spec
	if !d.HasOwner {
		spec.Owner = infra.Owner{UID: 107, GID: 107, Inside: true}
	}
	switch {
	case w == nil && spec.Binding == nil, w != nil && w.None:
		return infra.Spec{}, false, nil
	case w != nil:
		if err := d.apply(&spec, w); err != nil {
			return infra.Spec{}, false, &WishError{Where: w.where, Err: err}
		}
	}
	if w != nil && w.fields["dns"] == nil {
		spec.DNS = servedDNS(spec)
	}
	if auto, ok := spec.Binding.(infra.Auto); ok && len(auto.Order) == 0 {
		listed, _ := d.Spec.Binding.(infra.Auto)
		if auto.Order = slices.Clone(listed.Order); len(auto.Order) == 0 {
			auto.Order = slices.Clone(defaultOrder)
		}
		spec.Binding = auto
	}
	if dns != nil && spec.DNS == nil && hasResponder(spec) {
		proxy := len(spec.Names) > 0 && d.permitDNS(w) == nil
		if spec.DNS, err = dns(proxy); err != nil {
			return infra.Spec{}, false, err
		}
	}
	if err := spec.Validate(); err != nil && w != nil {
		var field *cache.FieldError
		_, said := w.fields["egress"]
		list := errors.As(err, &field) && w.fields["egressWithin"] == nil && refusesTarget(spec, field)
		switch {
		case field == nil:
		case w.fields["names"] != nil && field.Field == "names" && list:
			err = &cache.FieldError{Field: field.Field, Reason: field.Reason + ". Here egressWithin is what the node's CNI list allows, and the questions about names leave by the DNS proxy, which no list sees: ask the node's operator (\"egressWithin\", in the place of \"egress\", in \"spec\" of the entry guestwire in the list, with \"allow gateway 15353/udp\" and \"allow gateway 15353/tcp\")"}
		case said && list:
			err = &cache.FieldError{Field: field.Field, Reason: field.Reason + ". Here egressWithin is what the node's CNI list allows: ask the node's operator (\"egressWithin\", in the place of \"egress\", in \"spec\" of the entry guestwire in the list)"}
		case !said && (field.Field == "egress" || field.Field == "egressWithin"): // the binding has none
			err = &cache.FieldError{Field: field.Field, Reason: field.Reason + ". Here the node's CNI list has this field, so want the binding auto"}
		}
		return infra.Spec{}, false, &WishError{Where: w.where, Err: err}
	} else if err != nil {
		return infra.Spec{}, false, within(err)
	}
	return spec, true, nil
}

// apply writes a wish over the list's Spec.
func (d Defaults) apply(spec *infra.Spec, w *Wish) error {
	if w.length > MaxWish && !d.TrustPods {
		return fmt.Errorf("%d bytes, and at most %d are for a pod to say: name ranges of ports, or ask the node's operator (\"spec\" or \"trustPods\" of the entry guestwire in the node's CNI list)", w.length, MaxWish)
	}
	if w.word != "" {
		if spec.Binding != nil && spec.Binding.Kind() == cache.Kind(w.word) {
			return nil
		}
		b, err := infra.NewBinding(cache.Kind(w.word))
		if err == nil {
			spec.Binding, err = d.permit(b)
		}
		return err
	}
	for _, field := range slices.Sorted(maps.Keys(w.fields)) {
		var err error
		switch field {
		case "binding":
			spec.Binding, err = d.permit(w.spec.Binding)
		case "owner":
			spec.Owner, err = d.permitOwner(w.spec.Owner, saysInside(w.fields["owner"]))
		case "guest":
			spec.Guest = w.spec.Guest
		case "queues":
			spec.Queues = w.spec.Queues
		case "mtu":
			spec.MTU, err = d.permitMTU(w.spec.MTU)
		case "dns":
			spec.DNS, err = w.spec.DNS, d.permitDNS(w)
		case "options":
			spec.Options, err = d.permitOptions(w.spec.Options)
		case "device":
			spec.Device = w.spec.Device
		case "guard":
			if spec.Guard = w.spec.Guard; !d.TrustPods {
				err = onlyTrusted("guard")
			}
		case "tap": // the pod's other programs may take such a link for their own
			if spec.Tap = w.spec.Tap; !d.TrustPods {
				err = onlyTrusted("tap")
			}
		case "limits":
			if spec.Limits = w.spec.Limits; !d.TrustPods {
				err = onlyTrusted("limits")
			}
		case "flows":
			if spec.Flows = w.spec.Flows; !d.TrustPods {
				err = onlyTrusted("flows")
			}
		case "egress":
			err = d.permitEgress(spec, w.spec.Egress)
		case "names": // egress is before it
			spec.Names, err = w.spec.Names, d.permitNames(w)
		case "egressWithin":
			if spec.EgressWithin = w.spec.EgressWithin; !d.TrustPods {
				err = onlyTrusted("egressWithin")
			}
		case "acceptLosses": // of the pod's own network
			spec.AcceptLosses = w.spec.AcceptLosses
		default: // a field that is new in infra waits here until it is said what a pod may do with it
			err = onlyTrusted(field)
		}
		if err != nil {
			return err
		}
	}
	if spec.Binding == nil {
		spec.Binding = infra.Redirect{}
	}
	return nil
}

// onlyTrusted is the error of a field that a pod may not say.
func onlyTrusted(field string) error {
	return &cache.FieldError{Field: field, Reason: "not for a pod to say: leave it out, or ask the node's operator for it (\"spec\" or \"trustPods\" of the entry guestwire in the node's CNI list)"}
}

// permit returns the binding as a pod may have it: what a pod may not say comes from the list.
func (d Defaults) permit(b infra.Binding) (infra.Binding, error) {
	if d.TrustPods || reflect.DeepEqual(b, d.Spec.Binding) {
		return b, nil
	}
	switch b := b.(type) {
	case infra.Macvtap, infra.SRIOV:
		return nil, onlyTrusted("binding." + string(b.Kind()))
	case infra.Bridge:
		if !b.MAC.IsZero() {
			return nil, onlyTrusted("binding.bridge.mac")
		}
	case infra.Redirect:
		if !b.MAC.IsZero() {
			return nil, onlyTrusted("binding.redirect.mac")
		}
	case infra.Auto: // what auto can become has the defaults
		if !b.MAC.IsZero() {
			return nil, onlyTrusted("binding.auto.mac")
		}
		listed := d.maxConnections()
		fewer := listed > 0 && listed < infra.DefaultMaxConnections
		if fewer && slices.ContainsFunc(b.Bindings(), func(b infra.Binding) bool {
			return b.Kind() == cache.BindingMasquerade || b.Kind() == cache.BindingRouted
		}) {
			return nil, &cache.FieldError{Field: "binding.auto", Reason: fmt.Sprintf("with masquerade or routed a guest would have %d connections, and at most %d are for a pod to say: say masquerade or routed, or an order without them", infra.DefaultMaxConnections, listed)}
		}
	case infra.Masquerade:
		listed, _ := d.Spec.Binding.(infra.Masquerade)
		if b.Firewall != "" && b.Firewall != listed.Firewall {
			return nil, onlyTrusted("binding.masquerade.firewall")
		}
		b.Firewall = listed.Firewall
		var err error
		b.MaxConnections, err = d.permitConnections("binding.masquerade.maxConnections", b.MaxConnections)
		return b, err
	case infra.Routed:
		var err error
		b.MaxConnections, err = d.permitConnections("binding.routed.maxConnections", b.MaxConnections)
		return b, err
	}
	return b, nil
}

// maxConnections is the limit of the list's binding; 0: it has none.
func (d Defaults) maxConnections() int {
	switch listed := d.Spec.Binding.(type) {
	case infra.Masquerade:
		return listed.MaxConnections
	case infra.Routed:
		return listed.MaxConnections
	}
	return 0
}

// permitConnections is permit of a limit of connections. 0 is that of the list.
func (d Defaults) permitConnections(field string, wanted int) (int, error) {
	listed := d.maxConnections()
	if most := cmp.Or(listed, infra.DefaultMaxConnections); wanted > most {
		return 0, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d, and at most %d are for a pod to say (\"spec\" or \"trustPods\" of the entry guestwire in the node's CNI list)", wanted, most)}
	}
	return cmp.Or(wanted, listed), nil
}

// permitMTU is permit of an MTU. 0 is that of the list.
func (d Defaults) permitMTU(mtu int) (int, error) {
	listed := d.Spec.MTU
	if mtu == 0 {
		return listed, nil
	}
	if listed != 0 && mtu > listed && !d.TrustPods {
		return 0, &cache.FieldError{Field: "mtu", Reason: fmt.Sprintf("%d, and at most %d are for a pod to say (\"spec\" or \"trustPods\" of the entry guestwire in the node's CNI list)", mtu, listed)}
	}
	return mtu, nil
}

// permitOptions keeps the list's prefix of NAT64 where the list has egress, whose IPv4 entries mean addresses of it.
func (d Defaults) permitOptions(wanted cache.Options) (cache.Options, error) {
	switch listed := d.Spec.Options.NAT64; {
	case d.TrustPods || len(d.Spec.Egress)+len(d.Spec.EgressWithin) == 0:
	case wanted.NAT64.IsValid() && wanted.NAT64 != listed:
		return wanted, onlyTrusted("options.nat64")
	default:
		wanted.NAT64 = listed
	}
	return wanted, nil
}

// permitEgress lets a guest go where the pod's list and the CNI list's own both allow. Such a list takes from the pod's
// guest alone, so it needs no trust, also where the CNI list has none.
func (d Defaults) permitEgress(spec *infra.Spec, wanted []infra.Egress) error {
	switch {
	case d.TrustPods:
		spec.Names = nil // those of the list are a part of its egress
	case len(d.Spec.Names) > 0:
		return onlyTrusted("egress")
	case len(wanted) > MaxEgress:
		return &cache.FieldError{Field: "egress", Reason: fmt.Sprintf("%d entries, and at most %d are for a pod to say (\"spec\" or \"trustPods\" of the entry guestwire in the node's CNI list)", len(wanted), MaxEgress)}
	case spec.Egress != nil && spec.EgressWithin != nil:
		return onlyTrusted("egress") // it would be a third list
	case spec.Egress != nil:
		spec.EgressWithin = spec.Egress
	case spec.EgressWithin == nil && slices.ContainsFunc(wanted, func(e infra.Egress) bool { return e.Divert.Port() != 0 }):
		spec.EgressWithin = []infra.Egress{{To: "all"}} // which names no target
	}
	spec.Egress = wanted
	return nil
}

// permitNames lets a guest connect to names past the pod's own egress alone. Past the list's they would add to what it
// allows.
func (d Defaults) permitNames(w *Wish) error {
	switch {
	case d.TrustPods:
	case len(d.Spec.Names) > 0:
		return onlyTrusted("names")
	case w.fields["egress"] == nil:
		return &cache.FieldError{Field: "names", Reason: "without egress: names are what a guest may connect to past the \"refuse all\" of its own egress: say egress as well, such as [\"refuse all\"]"}
	}
	return nil
}

// permitDNS refuses resolvers of a pod's choice where the list depends on them. The addresses in their answers are
// those to which a guest with names may connect, and a DNS proxy sends them packets that no list sees.
func (d Defaults) permitDNS(w *Wish) error {
	if d.TrustPods {
		return nil
	}
	resolvers := func(e infra.Egress) bool { return e.To == "resolvers" }
	listed := len(d.Spec.Egress)+len(d.Spec.EgressWithin) > 0
	switch {
	case slices.ContainsFunc(d.Spec.Egress, resolvers), slices.ContainsFunc(d.Spec.EgressWithin, resolvers),
		len(d.Spec.Names) > 0, listed && w != nil && w.fields["names"] != nil:
		return onlyTrusted("dns")
	}
	return nil
}

// refusesTarget reports whether an error of Validate is about a pod's divert to where EgressWithin does not lead, or
// about its names for such a divert.
func refusesTarget(spec infra.Spec, field *cache.FieldError) bool {
	spec.EgressWithin = nil
	return (strings.HasPrefix(field.Field, "egress[") || field.Field == "names") && spec.Validate() == nil
}

// permitOwner is permit of an owner. Numbers that do not say inside are the pod's own.
func (d Defaults) permitOwner(o infra.Owner, said bool) (infra.Owner, error) {
	if o.SELinux != "" && o.SELinux != d.Spec.Owner.SELinux && !d.TrustPods {
		return o, onlyTrusted("owner.selinux")
	}
	if o.SELinux == "" {
		o.SELinux = d.Spec.Owner.SELinux
	}
	o.Inside = o.Inside || !said
	return o, nil
}

// within returns the error with the field's name as the entry of the CNI list has it.
func within(err error) error {
	var field *cache.FieldError
	if errors.As(err, &field) && field.Field != "" {
		return &cache.FieldError{Field: "spec." + field.Field, Reason: field.Reason}
	}
	if err != nil {
		return &cache.FieldError{Field: "spec", Reason: strings.TrimPrefix(err.Error(), ": ")}
	}
	return nil
}
