package infra

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/guestwire/guestwire/cache"
)

// TakeOver returns the Spec with what it leaves zero as in the record of a guest that moves here: the kind of the binding,
// also where [Auto] is asked for, the guest's MAC, a Masquerade's networks, Guest, Gateway and GatewayMAC, Queues, MTU,
// Limits, DNS, and each field of Options and Device. Guard, and what a Masquerade forwards, are in no record, so that the Spec has to have them.
//
// The error is a *cache.FieldError if the Spec contradicts what a running guest has: another MAC, GatewayMAC or number of
// queues, a smaller MTU, another model or address of the device, or SRIOV on one side alone. What else
// is otherwise, the guest learns; cache.Changes tells of two records.
func TakeOver(spec Spec, from cache.Record) (Spec, error) {
	if err := from.Validate(); err != nil {
		return Spec{}, within("from", err)
	}
	binding, err := takeBinding(spec.Binding, from)
	if err != nil {
		return Spec{}, err
	}
	spec.Binding = binding
	if spec.Queues != 0 && spec.Queues != from.Queues {
		return Spec{}, contradicts("queues", fmt.Sprint(spec.Queues), fmt.Sprint(from.Queues))
	}
	spec.Queues = from.Queues
	if spec.MTU != 0 && spec.MTU < from.MTU {
		return Spec{}, contradicts("mtu", fmt.Sprint(spec.MTU), fmt.Sprintf("%d, and does not notice a smaller one", from.MTU))
	}
	for _, f := range []struct {
		field      string
		want, have any
	}{
		{"device.model", spec.Device.Model, from.Device.Model},
		{"device.pciAddress", spec.Device.PCIAddress, from.Device.PCIAddress},
		{"device.acpiIndex", spec.Device.ACPIIndex, from.Device.ACPIIndex},
	} {
		if !reflect.ValueOf(f.want).IsZero() && f.want != f.have {
			return Spec{}, contradicts(f.field, fmt.Sprintf("%v", f.want), fmt.Sprintf("%q", fmt.Sprint(f.have)))
		}
	}
	fill(&spec.Device, from.Device)
	if direct(binding) {
		return spec, nil // Validate takes none of the rest
	}
	if spec.MTU == 0 {
		spec.MTU = from.MTU
	}
	if spec.Limits == (cache.Limits{}) {
		spec.Limits = from.Limits
	}
	if spec.DNS == nil {
		spec.DNS = from.DNS
	}
	fill(&spec.Options, from.Options)
	return spec, nil
}

func contradicts(field, want, have string) error {
	return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%s, but the guest that moves here has %s: leave this field out", want, have)}
}

// fill sets the fields that are zero.
func fill[T any](into *T, from T) {
	to, source := reflect.ValueOf(into).Elem(), reflect.ValueOf(from)
	for i := range to.NumField() {
		if to.Field(i).IsZero() {
			to.Field(i).Set(source.Field(i))
		}
	}
}

// takeBinding returns the binding with the guest's MAC, and of a Masquerade the guest's networks.
func takeBinding(b Binding, from cache.Record) (Binding, error) {
	if auto, isAuto := b.(Auto); isAuto {
		if !slices.Contains(auto.order(), from.Binding) {
			return nil, contradicts("binding.auto.order", fmt.Sprintf("%q", auto.order()), "the "+from.Binding+" binding")
		}
		if err := takeMAC("binding.auto.mac", &auto.MAC, from.MAC); err != nil {
			return nil, err
		}
		b = nil
	}
	if b == nil {
		var err error
		if b, err = NewBinding(from.Binding); err != nil {
			return nil, err
		}
		if from.SRIOV != nil { // the function's address is the node's
			b = SRIOV{VLAN: from.SRIOV.VLAN, Managed: from.SRIOV.Managed}
		}
	}
	if err := checkType(b); err != nil {
		return nil, err
	}
	if kind := b.Kind(); (kind == cache.BindingSRIOV) != (from.Binding == cache.BindingSRIOV) {
		return nil, contradicts("binding", "the "+kind+" binding", "the device of the "+from.Binding+" binding")
	}
	t := taker{from: from, field: "binding." + b.Kind() + "."}
	Visit(b, &t)
	return t.taken, t.err
}

// takeMAC sets a MAC that is zero.
func takeMAC(field string, m *cache.MAC, have cache.MAC) error {
	if !m.IsZero() && *m != have {
		return contradicts(field, m.String(), have.String())
	}
	*m = have
	return nil
}

// taker makes a binding the one of the guest that moves here.
type taker struct {
	from  cache.Record
	field string
	taken Binding
	err   error
}

func (t *taker) mac(m *cache.MAC) { t.err = takeMAC(t.field+"mac", m, t.from.MAC) }

func (t *taker) Bridge(b Bridge) {
	t.mac(&b.MAC)
	t.taken = b
}

func (t *taker) Redirect(b Redirect) {
	t.mac(&b.MAC)
	t.taken = b
}

func (t *taker) Masquerade(b Masquerade) {
	t.mac(&b.MAC)
	b.NICMAC = false // of another NIC
	if t.err == nil && t.from.Binding == cache.BindingMasquerade {
		t.err = t.gateway(&b)
	}
	t.taken = b
}

// gateway sets the guest's networks, and the addresses of the guest and the gateway in them, and the gateway's MAC.
func (t *taker) gateway(b *Masquerade) error {
	if v4 := t.from.IPv4; v4 != nil {
		b.IPv4 = cmp.Or(b.IPv4, v4.Address.Masked())
		b.takeEnds(v4.Address.Addr(), v4.Server, 4)
	}
	if v6 := t.from.IPv6; v6 != nil {
		b.IPv6 = cmp.Or(b.IPv6, networkOf(v6))
		b.takeEnds(v6.Address, v6.Gateway, 6)
	}
	if t.from.GatewayMAC.IsZero() {
		return nil
	}
	return takeMAC(t.field+"gatewayMAC", &b.GatewayMAC, t.from.GatewayMAC)
}

// takeEnds sets the addresses of one version of IP that are missing, unless the guest gets another network.
func (b *Masquerade) takeEnds(guest, gateway netip.Addr, version int) {
	for _, end := range []struct {
		list *[]netip.Addr
		have netip.Addr
	}{{&b.Guest, guest}, {&b.Gateway, gateway}} {
		if b.network(version).Contains(end.have) && !ofVersion(*end.list, version).IsValid() {
			*end.list = append(slices.Clone(*end.list), end.have)
		}
	}
}

// networkOf is the network of a guest behind a Masquerade; zero: the record does not tell.
func networkOf(v6 *cache.IPv6) netip.Prefix {
	for _, p := range v6.OnLink {
		if p.Contains(v6.Address) {
			return p
		}
	}
	return netip.Prefix{}
}

func (t *taker) Routed(b Routed) {
	t.err = &cache.FieldError{Field: "binding", Reason: "a guest of the routed binding cannot move: want another binding, or a guest without From"}
}

// Macvtap has the NIC's MAC.
func (t *taker) Macvtap(b Macvtap) { t.taken = b }

func (t *taker) SRIOV(b SRIOV) {
	t.mac(&b.MAC)
	t.taken = b
}

func (t *taker) Passt(b Passt) {
	t.mac(&b.MAC)
	t.taken = b
}

func (t *taker) Auto(b Auto) { t.taken = b } // takeBinding has replaced it
