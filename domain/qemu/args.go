package qemu

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// Args returns arguments of QEMU's command line for all records, and the guest's open taps. QEMU must inherit the taps,
// from descriptor first on. That is 3, and one more for each file before them in ExtraFiles. The caller closes the
// taps.
//
//	args, taps, err := qemu.Args(vm.Records(), 3, phase2.OpenTap)
//	cmd.Args, cmd.ExtraFiles = append(cmd.Args, args...), taps
//
// The error is that of open, NewNIC or NIC.Args, and then no tap is open. A record of passt is an error: use NewNIC,
// with Options.Socket. Two records with one id are an error, a *cache.FieldError.
func Args[File io.Closer](records []cache.Record, first int, open func(cache.Record) ([]File, error)) ([]string, []File, error) {
	var args []string
	var taps []File
	ids := map[string]string{} // the records' names
	for _, r := range records {
		more, queues, err := recordArgs(&r, first+len(taps), open)
		if id, failed := deviceID(&r, Options{}); failed == nil && err == nil {
			if ids[id] != "" {
				err = fmt.Errorf("NICs %s and %s: %w", ids[id], r.Name, &cache.FieldError{Field: "device.alias",
					Reason: fmt.Sprintf("both have the id %q in QEMU: name another alias in the Spec of one, and run Setup again", id)})
			}
			ids[id] = r.Name
		}
		args, taps = append(args, more...), append(taps, queues...)
		if err != nil {
			for _, f := range taps {
				f.Close()
			}
			return nil, nil, err
		}
	}
	return args, taps, nil
}

// recordArgs returns the arguments of one record. With an error it also returns what it has opened.
func recordArgs[File any](r *cache.Record, first int, open func(cache.Record) ([]File, error)) (args []string, queues []File, err error) {
	var o Options
	if r.Tap != "" {
		if queues, err = open(*r); err != nil {
			return nil, nil, err
		}
		for i := range queues {
			o.FDs = append(o.FDs, strconv.Itoa(first+i))
		}
	}
	nic, err := NewNIC(r, o)
	if err != nil {
		return nil, queues, err
	}
	args, err = nic.Args()
	return args, queues, err
}

// Args returns -netdev and -device for QEMU's command line, and before them -chardev if there is a Chardev. For a
// virtual function it returns -device and -nic none.
//
// A *cache.FieldError: SetLink is set, which QEMU takes by QMP alone. Start QEMU with -S, send set_link and cont, and
// set SetLink to nil before you call Args.
func (n *NIC) Args() ([]string, error) {
	if n.SetLink != nil {
		return nil, fmt.Errorf("device %v: %w", n.SetLink["name"], &cache.FieldError{Field: "device.linkState",
			Reason: "down, which QEMU's command line cannot say: send set_link by QMP, or leave this field empty"})
	}
	backend := []string{"-nic", "none"}
	if n.Netdev != nil {
		backend = []string{"-netdev", option(n.Netdev, "type")}
	}
	args := append(backend, "-device", option(n.Device, "driver"))
	if n.Chardev != nil {
		args = append([]string{"-chardev", option(n.chardevOptions(), "type")}, args...)
	}
	return args, nil
}

// chardevOptions returns Chardev as the command line has it: the members of QMP's objects side by side.
func (n *NIC) chardevOptions() Object {
	values, o := map[string][]string{}, Object{}
	flatten(values, "", n.Chardev)
	for key, value := range values {
		if key != "backend.data.addr.type" {
			o[key[strings.LastIndexByte(key, '.')+1:]] = value[0]
		}
	}
	return o
}

// option returns the object in the form VALUE,id=VALUE,key=value: first the value of the key that QEMU lets out there,
// then the id, then the others, sorted. A list is its key several times.
func option(o Object, first string) string {
	values := map[string][]string{}
	flatten(values, "", o)
	text := escape(values[first][0]) + ",id=" + escape(values["id"][0])
	delete(values, first)
	delete(values, "id")
	for _, key := range slices.Sorted(maps.Keys(values)) {
		for _, value := range values[key] {
			text += "," + key + "=" + escape(value)
		}
	}
	return text
}

// escape returns the value as QEMU reads it: a comma would end it.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// flatten adds the values of the object with dotted keys. The objects of a list have one member, a string.
func flatten(to map[string][]string, prefix string, o Object) {
	for key, value := range o {
		switch v := value.(type) {
		case Object:
			flatten(to, prefix+key+".", v)
		case []Object:
			for _, member := range v {
				to[prefix+key] = append(to[prefix+key], fmt.Sprint(member["str"]))
			}
		case bool:
			to[prefix+key] = []string{map[bool]string{true: "on", false: "off"}[v]}
		case int:
			to[prefix+key] = []string{strconv.Itoa(v)}
		default:
			to[prefix+key] = []string{fmt.Sprint(v)}
		}
	}
}
