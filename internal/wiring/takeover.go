package wiring

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TakeOver returns the Spec with what it leaves zero as in the record of a guest that moves here: the kind of the
// binding, also where Auto is asked for, the guest's MAC, a Masquerade's networks, Guest, Gateway and GatewayMAC,
// Queues, MTU, Limits, DNS, and each field of Options and Device, and Tap, if the caller has named it there. Guard,
// Egress, EgressWithin, and what a Masquerade forwards, are in no record, so that the Spec has to have them.
//
// The error is a *cache.FieldError if the Spec contradicts what a running guest has: another MAC, GatewayMAC or number
// of queues, a smaller MTU, another model or address of the device, or SRIOV on one side alone. The guest learns of
// other changes, which cache.Changes names. An unknown binding is left for Validate to refuse.
func TakeOver(spec infra.Spec, from cache.Record) (infra.Spec, error) {
	if err := validate("from.", &from); err != nil {
		return infra.Spec{}, err
	}
	binding, err := takeBinding(spec.Binding, from)
	if err != nil {
		return infra.Spec{}, err
	}
	if spec.Binding = binding; answersOf(binding) == nil {
		return spec, nil // Validate refuses it
	}
	if spec.Queues != 0 && spec.Queues != from.Queues {
		return infra.Spec{}, contradicts("queues", fmt.Sprint(spec.Queues), fmt.Sprint(from.Queues))
	}
	spec.Queues = from.Queues
	if spec.MTU != 0 && spec.MTU < from.MTU {
		return infra.Spec{}, contradicts("mtu", fmt.Sprint(spec.MTU), fmt.Sprintf("%d, and does not notice a smaller one", from.MTU))
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
			return infra.Spec{}, contradicts(f.field, fmt.Sprintf("%v", f.want), fmt.Sprintf("%q", fmt.Sprint(f.have)))
		}
	}
	fill(&spec.Device, from.Device)
	if !MakesTaps(binding) {
		return spec, nil // Validate takes none of the rest
	}
	if named := from.Tap != netstate.NamesFor(from.Name, "").Tap; spec.Tap == "" && named && from.Tap != from.Name { // that is a macvtap
		spec.Tap = from.Tap
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
func takeBinding(b infra.Binding, from cache.Record) (infra.Binding, error) {
	if auto, isAuto := b.(infra.Auto); isAuto {
		if !slices.Contains(kindsOf(auto), from.Binding) {
			return nil, contradicts("binding.auto.order", fmt.Sprintf("%q", kindsOf(auto)), fmt.Sprintf("the %s binding", from.Binding))
		}
		if err := takeMAC("binding.auto.mac", &auto.MAC, from.MAC); err != nil {
			return nil, err
		}
		b = nil
	}
	if b == nil {
		var err error
		if b, err = infra.NewBinding(from.Binding); err != nil {
			return nil, err
		}
		if from.SRIOV != nil { // the function's address is the node's
			b = infra.SRIOV{VLAN: from.SRIOV.VLAN, Managed: from.SRIOV.Managed}
		}
	}
	a := answersOf(b)
	if a == nil {
		return b, nil
	}
	if kind := b.Kind(); (kind == cache.BindingSRIOV) != (from.Binding == cache.BindingSRIOV) {
		return nil, contradicts("binding", fmt.Sprintf("the %s binding", kind), fmt.Sprintf("the device of the %s binding", from.Binding))
	}
	prefix := fmt.Sprintf("binding.%s.", b.Kind())
	if m, is := a.(mover); is {
		return m.takeOver(prefix, from)
	}
	with := reflect.New(reflect.TypeOf(b)).Elem()
	with.Set(reflect.ValueOf(b))
	if mac := with.FieldByName("MAC"); mac.IsValid() {
		err := takeMAC(prefix+"mac", mac.Addr().Interface().(*cache.MAC), from.MAC)
		return with.Interface().(infra.Binding), err
	}
	return b, nil // the guest's MAC is the NIC's
}

// givenMAC is the guest's MAC that the binding names; zero: none.
func givenMAC(b infra.Binding) (given cache.MAC) {
	if mac := reflect.ValueOf(b).FieldByName("MAC"); mac.IsValid() {
		given = mac.Interface().(cache.MAC)
	}
	return given
}
