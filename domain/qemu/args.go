package qemu

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// Args returns the device as arguments of QEMU's command line: -netdev and -device with their values.
//
// The error wraps a [*cache.FieldError] if SetLink is set: QEMU's command line cannot take a link down. A launcher with
// QMP starts QEMU with -S, sends set_link and cont, and has set SetLink to nil before it calls Args.
func (n *NIC) Args() ([]string, error) {
	if n.SetLink != nil {
		return nil, fmt.Errorf("device %v: %w", n.SetLink["name"], &cache.FieldError{Field: "device.linkState",
			Reason: "down, which QEMU's command line cannot say: send set_link by QMP, or leave this field empty"})
	}
	var args []string
	if n.Netdev != nil {
		args = append(args, "-netdev", option(n.Netdev, "type"))
	}
	return append(args, "-device", option(n.Device, "driver")), nil
}

// option returns the object in the form VALUE,id=VALUE,key=value: first the value of the key that QEMU lets out there, then
// the id, then the others, sorted.
func option(o Object, first string) string {
	values := map[string]string{}
	flatten(values, "", o)
	text := escape(values[first]) + ",id=" + escape(values["id"])
	delete(values, first)
	delete(values, "id")
	for _, key := range slices.Sorted(maps.Keys(values)) {
		text += "," + key + "=" + escape(values[key])
	}
	return text
}

// escape returns the value as QEMU reads it: a comma would end it.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// flatten adds the values of the object with dotted keys.
func flatten(to map[string]string, prefix string, o Object) {
	for key, value := range o {
		switch v := value.(type) {
		case Object:
			flatten(to, prefix+key+".", v)
		case bool:
			to[prefix+key] = map[bool]string{true: "on", false: "off"}[v]
		case int:
			to[prefix+key] = strconv.Itoa(v)
		default:
			to[prefix+key] = fmt.Sprint(v)
		}
	}
}
