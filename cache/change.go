package cache

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/eui64"
)

// Change is what a guest or its VMM notices when one record takes the place of another.
type Change struct {
	// Field is the field's path in the record's JSON, such as ipv4.address.
	Field string `json:"field"`

	// From and To are the values as in JSON, texts without quotes. Empty: the record has no
	// such field.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// String returns a phrase, such as "ipv4.address: 10.244.1.7/24 becomes 10.244.2.9/24".
func (c Change) String() string {
	value := func(text string) string {
		if text == "" {
			return "nothing"
		}
		return text
	}
	return fmt.Sprintf("%s: %s becomes %s", c.Field, value(c.From), value(c.To))
}

// Changes returns what a guest notices if the record to replaces the record from. The changes are in the order of the
// fields. Nil: the guest notices nothing. Changes leaves out fields that concern only the namespace and the launcher.
//
// A snapshot of a VMM has its NIC's name, the tap's name and the PCI address of a network card's function. So name, tap
// and sriov.pciAddress are changes, which a guest does not notice.
func Changes(from, to Record) []Change {
	var list []Change
	add := func(field string, a, b any) {
		if a, b := valueText(a), valueText(b); a != b {
			list = append(list, Change{field, a, b})
		}
	}
	add("name", from.Name, to.Name)
	add("tap", from.Tap, to.Tap)
	function := func(r Record) (pciAddress string) {
		if r.SRIOV != nil {
			pciAddress = r.SRIOV.PCIAddress
		}
		return pciAddress
	}
	add("sriov.pciAddress", function(from), function(to))
	networks := func(r Record) (v4, v6 netip.Prefix) {
		if r.Slirp != nil {
			v4, v6 = r.Slirp.IPv4, r.Slirp.IPv6
		}
		return v4, v6
	}
	from4, from6 := networks(from)
	to4, to6 := networks(to)
	add("slirp.ipv4", from4, to4)
	add("slirp.ipv6", from6, to6)
	add("mac", from.MAC, to.MAC)
	add("macs", from.MACs, to.MACs)
	add("gatewayMAC", from.GatewayMAC, to.GatewayMAC)
	add("responderMAC", from.ResponderMAC, to.ResponderMAC)
	add("queues", from.Queues, to.Queues)
	add("mtu", from.MTU, to.MTU)
	eachField("limits", &from.Limits, &to.Limits, add)
	eachField("ipv4", from.IPv4, to.IPv4, add)
	eachField("ipv6", from.IPv6, to.IPv6, add)
	from.Static, to.Static = withoutOwn(from), withoutOwn(to)
	add("neighbours", from.Neighbours, to.Neighbours)
	eachField("dns", from.DNS, to.DNS, add)
	add("resolver", from.Resolver, to.Resolver)
	add("dnsProxy", from.DNSProxy, to.DNSProxy)
	eachField("options", &from.Options, &to.Options, add)
	eachField("static", from.Static, to.Static, add)
	eachField("device", &from.Device, &to.Device, add)
	return list
}

// withoutOwn is Static without the link-local address that the guest makes of its MAC by itself.
func withoutOwn(r Record) *Static {
	if r.Static == nil {
		return nil
	}
	s := *r.Static
	s.Addresses = slices.DeleteFunc(slices.Clone(s.Addresses), func(a StaticAddress) bool { return a.Address.Addr() == eui64.LinkLocal(r.MAC) })
	return &s
}

// eachField compares the fields of two structs. A struct that is nil has none.
func eachField[T any](name string, from, to *T, add func(field string, from, to any)) {
	var none T
	if from == nil {
		from = &none
	}
	if to == nil {
		to = &none
	}
	a, b := reflect.ValueOf(*from), reflect.ValueOf(*to)
	for i := range a.NumField() {
		field, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		if field != "warnings" {
			add(name+"."+field, a.Field(i).Interface(), b.Field(i).Interface())
		}
	}
}

// valueText is a value as in JSON; empty: the zero value.
func valueText(v any) string {
	if r := reflect.ValueOf(v); r.IsZero() || r.Kind() == reflect.Slice && r.Len() == 0 || r.Kind() == reflect.Map && r.Len() == 0 {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v) // a record has no such value
	}
	var plain string
	if json.Unmarshal(text, &plain) == nil {
		return plain
	}
	return string(text)
}
