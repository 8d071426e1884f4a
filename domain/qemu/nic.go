// Package qemu describes the guest's network device to QEMU, from the record that Phase1 wrote: as arguments of the
// command line, and of the QMP commands netdev_add and device_add.
package qemu

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/internal/refusal"
	"github.com/guestwire/guestwire/internal/servers"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Options is what the record does not have. The zero value has QEMU open the tap by its name.
type Options struct {
	// ID is the device's id in QEMU: a letter, then letters, digits, '-', '.' and '_'. Empty:
	// the record's Device.Alias, or its Name. Those that are no id in QEMU get a prefix: an
	// alias "ua-", as libvirt's have, and a Name "guestwire-device-". No other NIC of a VM has
	// the id of a Name. The netdev's id is the same with "-netdev" at the end.
	ID string

	// Bus is the id of the device's bus. Empty: QEMU chooses. To plug a device into a running
	// q35 machine, name a pcie-root-port. A record with a PCIAddress on another bus than
	// 0000:00 needs Bus, as QEMU knows buses by id alone.
	Bus string

	// FDs are the open queues of phase2.OpenTap, one for each of the record's Queues. They are
	// descriptors that QEMU inherits, such as "3", or names that getfd was given. Empty: QEMU
	// opens the tap, which a macvtap does not allow.
	FDs []string

	// Vhost asks for vhost=on, for a virtio device on a tap whose record does not want the
	// Driver "qemu". Set it only if QEMU can open /dev/vhost-net or gets VhostFDs: QEMU 7.2
	// aborts otherwise.
	Vhost bool

	// VhostFDs are open files of /dev/vhost-net, one for each of FDs, in the same form.
	VhostFDs []string

	// Socket is the path of passt's Unix socket, for a record of passt. Start passt first:
	// otherwise QEMU starts without an error, and the guest has no network.
	Socket string
}

// Object has the arguments of a QMP command. Its values are strings, bools, ints, Objects and lists of them.
type Object map[string]any

// NIC is a network device of QEMU. The caller can change the objects, for example to add rx_queue_size to Device.
type NIC struct {
	// Chardev is the connection to passt by which the backend shares the guest's memory: the
	// arguments of chardev-add, before netdev_add, or of -chardev. netdev_del removes it, and
	// passt ends. Nil: the record has no Passt.VhostUser.
	Chardev Object

	// Netdev is the backend: the arguments of netdev_add, or of -netdev. Nil: the device is a
	// virtual function.
	Netdev Object

	// Device is what the guest sees: the arguments of device_add, after netdev_add, or of
	// -device.
	Device Object

	// SetLink has the arguments of set_link, after device_add. Nil: the device's link is up.
	SetLink Object
}

// NewNIC returns the network device for the record. It reads no files and asks no kernel.
//
// The device is the one that libvirt makes of the record's Device. A model that libvirt does not know is a device of
// QEMU, such as vmxnet3. QEMU loads a ROM only if the record has one or the guest boots from the device. The caller
// sets the MAC and the driver of a virtual function.
//
// A tap needs QEMU 2.9, the default model 4.0, an ACPI index 6.1, passt 7.2.
//
// Passt.VhostUser was tried with QEMU 10.0, and 7.2 crashes. It also needs shared memory, with the size of -m: -object
// memory-backend-memfd,id=ram,share=on,size=SIZE -machine memory-backend=ram.
//
// A *cache.FieldError: a field of the record or the options is wrong. Source: qemu(1), -netdev and -device;
// qemu-qmp-ref(7).
func NewNIC(rec *cache.Record, o Options) (*NIC, error) {
	return refusal.Describe(rec, func(rec *cache.Record) (*NIC, error) { return newNIC(rec, o) })
}

func newNIC(rec *cache.Record, o Options) (*NIC, error) {
	id, err := deviceID(rec, o)
	if err != nil {
		return nil, err
	}
	m := modelOf(rec)
	if err := m.check(rec); err != nil {
		return nil, err
	}
	if err := o.check(rec, m); err != nil {
		return nil, err
	}
	nic := &NIC{Device: Object{"driver": m.driver, "id": id}}
	if rec.SRIOV != nil {
		nic.Device["host"] = rec.SRIOV.PCIAddress
	} else {
		netdev := id + "-netdev"
		nic.Netdev = newNetdev(netdev, rec, m, o)
		if chardev, is := nic.Netdev["chardev"]; is {
			nic.Chardev = newChardev(chardev.(string), o.Socket)
		}
		nic.Device["netdev"] = netdev
		nic.Device["mac"] = rec.MAC.String()
	}
	if m.virtio {
		nic.Device["host_mtu"] = rec.MTU
		if rec.Queues > 1 {
			nic.Device["mq"] = true
			if m.pci { // two for each pair of queues, one for the control queue, one for changes of the configuration
				nic.Device["vectors"] = 2*rec.Queues + 2
			}
		}
	}
	if m.pci {
		setROM(nic.Device, rec.Device)
		if err := setPlace(nic.Device, rec.Device, o); err != nil {
			return nil, err
		}
	}
	if o.Bus != "" {
		nic.Device["bus"] = o.Bus
	}
	if rec.Device.BootOrder != 0 {
		nic.Device["bootindex"] = int(rec.Device.BootOrder)
	}
	if rec.Device.LinkState == "down" {
		nic.SetLink = nic.Link(false)
	}
	return nic, nil
}

// Plug plugs the device into a running QEMU, by netdev_add and device_add, and by set_link if its link is down. do
// sends a QMP command, and returns QEMU's error. QEMU must know the names in Options.FDs before (getfd). If device_add
// fails, Plug removes the backend (netdev_del).
func (n *NIC) Plug(do func(command string, arguments Object) error) error {
	if n.Chardev != nil {
		if err := do("chardev-add", n.Chardev); err != nil {
			return fmt.Errorf("chardev-add: %w", err)
		}
	}
	if n.Netdev != nil {
		if err := do("netdev_add", n.Netdev); err != nil {
			err = fmt.Errorf("netdev_add: %w", err)
			if n.Chardev != nil { // which goes with a netdev alone
				if left := do("chardev-remove", Object{"id": n.Chardev["id"]}); left != nil {
					err = errors.Join(err, fmt.Errorf("chardev-remove, without which passt goes on: %w", left))
				}
			}
			return err
		}
	}
	if err := do("device_add", n.Device); err != nil {
		err = fmt.Errorf("device_add: %w", err)
		if n.Netdev != nil {
			if left := do("netdev_del", Object{"id": n.Netdev["id"]}); left != nil {
				err = errors.Join(err, fmt.Errorf("netdev_del, which leaves the tap open: %w", left))
			}
		}
		return err
	}
	if n.SetLink != nil {
		if err := do("set_link", n.SetLink); err != nil {
			return fmt.Errorf("set_link of the device, which is plugged and whose link is up: %w", err)
		}
	}
	return nil
}

// Unplug unplugs the device from a running QEMU. device_del asks the guest, and netdev_del closes the tap. Call it
// before Phase1's Teardown, which refuses while the tap is open and removes the record. Source: qemu-qmp-ref(7),
// device_del.
//
// do is that of Plug. deleted waits for the event DEVICE_DELETED with the device's id, and reports whether it came.
// QEMU also sends events without an id, for parts of the device: ignore these. Keep an event that arrives during do,
// because it counts.
//
// Let deleted return false after some time, such as 5 s. Unplug then sends device_del again, as a guest that boots may
// miss one. It ends when deleted returns true or an error, such as that of a context. After an error the guest still
// has the device, and Unplug can be called again.
func (n *NIC) Unplug(do func(command string, arguments Object) error, deleted func() (bool, error)) error {
	const devices = "/machine/peripheral"
	id := n.Device["id"]
	for accepted := false; ; {
		refused := do("device_del", Object{"id": id})
		if refused != nil && do("qom-list", Object{"path": fmt.Sprint(devices, "/", id)}) != nil && do("qom-list", Object{"path": devices}) == nil {
			break // QEMU answers, and has no such device any more
		}
		accepted = accepted || refused == nil
		gone, err := deleted()
		if gone {
			break
		}
		if refused != nil { // QEMU may still be at an earlier device_del
			refused = fmt.Errorf("device_del: %w", refused)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("wait for the guest to give device %v up: %w", id, err), refused)
		}
		if !accepted {
			return refused
		}
	}
	if n.Netdev == nil {
		return nil
	}
	// QEMU accepts netdev_del before the event, too, and leaves the guest a device without a
	// backend.
	if err := do("netdev_del", Object{"id": n.Netdev["id"]}); err != nil {
		return fmt.Errorf("netdev_del, without which the tap stays open: %w", err)
	}
	return nil
}

// Link returns the arguments of set_link, which sets the carrier that the guest sees.
func (n *NIC) Link(up bool) Object { return Object{"name": n.Device["id"], "up": up} }

// The prefixes of ids are longer than any record's Name, so no derived id is another record's Name.
const (
	ofName   = "guestwire-device-"
	ofNetdev = "guestwire-netdev-" // of a Name that ends as the ids of netdevs do
)

// deviceID returns the device's id. It has to be one by QEMU's id_wellformed. Another NIC's netdev must not have it,
// as set_link takes the names of both.
func deviceID(rec *cache.Record, o Options) (string, error) {
	const netdev = "-netdev"
	switch {
	case o.ID != "" && !isID(o.ID):
		return "", &cache.FieldError{Field: "options.id",
			Reason: fmt.Sprintf("%q is no id in QEMU, which wants a letter, then letters, digits, '-', '.' and '_': set Options.ID to one, or leave it empty", o.ID)}
	case o.ID != "":
		return o.ID, nil
	case rec.Device.Alias != "" && !isID(rec.Device.Alias):
		return "ua-" + rec.Device.Alias, nil
	case rec.Device.Alias != "":
		return rec.Device.Alias, nil
	case strings.HasSuffix(rec.Name, netdev):
		return ofNetdev + strings.TrimSuffix(rec.Name, netdev) + ".netdev", nil
	case !isID(rec.Name):
		return ofName + rec.Name, nil
	}
	return rec.Name, nil
}

// isID reports whether QEMU takes the text as an id. The text is not empty.
func isID(text string) bool {
	first := text[0] | 0x20 // a capital letter becomes a small one
	return 'a' <= first && first <= 'z' && syntax.IsWord(text, "-._", len(text))
}

// newNetdev returns the backend of a tap, of passt or of slirp.
func newNetdev(id string, rec *cache.Record, m model, o Options) Object {
	if rec.Passt != nil && rec.Passt.VhostUser {
		return Object{"type": "vhost-user", "id": id, "chardev": id + "-chardev"}
	}
	if rec.Passt != nil {
		return Object{"type": "stream", "id": id, "server": false, "addr": Object{"type": "unix", "path": o.Socket}}
	}
	if rec.Slirp != nil {
		return newUser(id, rec)
	}
	netdev := Object{"type": "tap", "id": id}
	switch {
	case len(o.FDs) > 1:
		netdev["fds"] = strings.Join(o.FDs, ":")
	case len(o.FDs) == 1:
		netdev["fd"] = o.FDs[0]
	default:
		// Without "no", QEMU runs /etc/qemu-ifup.
		netdev["ifname"], netdev["script"], netdev["downscript"] = rec.Tap, "no", "no"
		if rec.Queues > 1 {
			netdev["queues"] = rec.Queues
		}
	}
	if m.virtio && o.Vhost && rec.Device.Driver != "qemu" {
		netdev["vhost"] = true
		switch {
		case len(o.VhostFDs) > 1:
			netdev["vhostfds"] = strings.Join(o.VhostFDs, ":")
		case len(o.VhostFDs) == 1:
			netdev["vhostfd"] = o.VhostFDs[0]
		}
	}
	return netdev
}

// newChardev returns the connection to passt's socket (QMP's ChardevSocket).
func newChardev(id, socket string) Object {
	address := Object{"type": "unix", "data": Object{"path": socket}}
	return Object{"id": id, "backend": Object{"type": "socket", "data": Object{"addr": address, "server": false}}}
}

// newUser returns the backend of slirp, QEMU's user network. Without a family's name, QEMU would give the guest one.
func newUser(id string, rec *cache.Record) Object {
	s := rec.Slirp
	user := Object{"type": "user", "id": id, "ipv4": s.IPv4.IsValid(), "ipv6": s.IPv6.IsValid()}
	if s.IPv4.IsValid() {
		user["net"] = s.IPv4.String()
	}
	if s.IPv6.IsValid() {
		user["ipv6-prefix"], user["ipv6-prefixlen"] = s.IPv6.Addr().String(), s.IPv6.Bits()
	}
	var forwards, search []Object
	for _, f := range s.Forwards {
		for i := range int(f.Last-f.First) + 1 {
			forwards = append(forwards, Object{"str": fmt.Sprintf("%s::%d-:%d", f.Protocol, int(f.First)+i, int(f.Guest)+i)})
		}
	}
	if rec.DNS != nil {
		domains, _ := servers.Search(&rec.Options, rec.DNS.Search) // Validate has refused what the guest cannot get
		for _, domain := range domains {
			search = append(search, Object{"str": domain})
		}
	}
	if len(forwards) > 0 {
		user["hostfwd"] = forwards
	}
	if len(search) > 0 {
		user["dnssearch"] = search
	}
	return user
}

// setROM sets the device's ROM. Without a property, QEMU loads its default ROM: firmware that the launcher did not ask
// for, from a file that its image may not have.
func setROM(device Object, d cache.Device) {
	switch {
	case d.ROM == "on", d.ROM == "" && d.BootOrder != 0:
	case d.ROM == "off", d.ROM == "":
		device["romfile"] = ""
	default:
		device["romfile"] = d.ROM
	}
}

// setPlace sets the device's slot and function on its bus, and its ACPI index.
func setPlace(device Object, d cache.Device, o Options) error {
	if d.PCIAddress != "" {
		bus, slot := d.PCIAddress[:len("0000:00")], d.PCIAddress[len("0000:00:"):]
		if o.Bus == "" && bus != "0000:00" {
			return &cache.FieldError{Field: "device.pciAddress",
				Reason: fmt.Sprintf("%s, and QEMU knows bus %s by its id alone: set Options.Bus", d.PCIAddress, bus)}
		}
		device["addr"] = slot
	}
	if d.ACPIIndex != 0 {
		device["acpi-index"] = int(d.ACPIIndex)
	}
	return nil
}

// check refuses options that do not fit the record, and a record that needs other options.
func (o Options) check(rec *cache.Record, m model) error {
	tap := rec.Tap != ""
	vhost := tap && m.virtio && o.Vhost && rec.Device.Driver != "qemu"
	var r refusal.First
	r.If(len(o.FDs) > 0 && !tap, "options.fds", "%d descriptors, but the %s binding has no tap: leave this field empty", len(o.FDs), rec.Binding)
	r.If(len(o.FDs) > 0 && tap && len(o.FDs) != rec.Queues, "options.fds", "%d descriptors, but the record has %d queues: want one for each queue", len(o.FDs), rec.Queues)
	r.If(len(o.FDs) == 0 && rec.Binding == cache.BindingMacvtap, "options.fds", "none, but QEMU cannot open a macvtap: open its queues (phase2.OpenTap), and name the descriptors here")
	r.If(len(o.VhostFDs) > 0 && !vhost, "options.vhostFDs", "want none: this field needs Vhost, a tap, a virtio model and a device.driver other than qemu")
	r.If(len(o.VhostFDs) > 0 && len(o.VhostFDs) != len(o.FDs), "options.vhostFDs", "%d descriptors of /dev/vhost-net and %d of the tap: want as many", len(o.VhostFDs), len(o.FDs))
	r.If(rec.Device.Driver == "vhost" && !vhost, "device.driver", "vhost, but Options.Vhost does not say that QEMU can open /dev/vhost-net: set Options.Vhost, or leave this field empty")
	r.If(o.Socket == "" && rec.Passt != nil, "options.socket", "missing, want the path of passt's socket")
	r.If(o.Socket != "" && rec.Passt == nil, "options.socket", "%q, but the %s binding has no passt: leave this field empty", o.Socket, rec.Binding)
	r.If(slices.ContainsFunc(o.FDs, unnamed), "options.fds", "%q, want numbers, or names of QMP's getfd, which have no colon", o.FDs)
	r.If(slices.ContainsFunc(o.VhostFDs, unnamed), "options.vhostFDs", "%q, want numbers, or names of QMP's getfd, which have no colon", o.VhostFDs)
	return r.Err()
}

// unnamed reports whether the command line cannot name the descriptor.
func unnamed(fd string) bool { return fd == "" || strings.Contains(fd, ":") }
