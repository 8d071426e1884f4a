package refusal_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/domain/cloudhypervisor"
	"github.com/guestwire/guestwire/domain/crosvm"
	"github.com/guestwire/guestwire/domain/firecracker"
	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/test/records"
)

// described reports whether there is a description of the record, and the error of making one.
type described func(*cache.Record) (bool, error)

func libvirt(r *cache.Record) (bool, error) {
	iface, err := domain.Interface(r)
	return iface != nil, err
}

func qemuWith(o qemu.Options) described {
	return func(r *cache.Record) (bool, error) {
		nic, err := qemu.NewNIC(r, o)
		return nic != nil, err
	}
}

func cloudWith(o cloudhypervisor.Options) described {
	return func(r *cache.Record) (bool, error) {
		n, err := cloudhypervisor.NewNet(r, o)
		return n != nil, err
	}
}

func crosvmWith(o crosvm.Options) described {
	return func(r *cache.Record) (bool, error) {
		args, err := crosvm.Args(r, o)
		return args != nil, err
	}
}

func fire(r *cache.Record) (bool, error) {
	n, err := firecracker.NewNetworkInterface(r)
	return n != nil, err
}

func passtAt(socket string) described {
	return func(r *cache.Record) (bool, error) {
		args, err := passt.Args(r, socket)
		return args != nil, err
	}
}

// device returns an edit that sets the record's device.
func device(d cache.Device) func(*cache.Record) { return func(r *cache.Record) { r.Device = d } }

func same(*cache.Record)        {}
func shortMTU(r *cache.Record)  { r.MTU = 1 }
func forPasst(r *cache.Record)  { records.Passt(r) }
func shared(r *cache.Record)    { records.Passt(r); r.Passt.VhostUser = true }
func twoQueues(r *cache.Record) { r.Queues = 2 }

// TestRefusals: what each VMM cannot have. The error names the interface and the field, and says what to do.
func TestRefusals(t *testing.T) {
	plain, cloud, cros, vhost := qemuWith(qemu.Options{}), cloudWith(cloudhypervisor.Options{}), crosvmWith(crosvm.Options{}), qemuWith(qemu.Options{Vhost: true})
	for _, c := range []struct {
		name     string
		describe described
		edit     func(*cache.Record)
		field    string
		words    string // what the message asks the user to do
	}{
		{"libvirt/invalid record", libvirt, func(r *cache.Record) { r.Tap = "" }, "tap", "want 1 to 15"},
		{"libvirt/newer record", libvirt, func(r *cache.Record) { r.Version++ }, "version", "use the version of guestwire that wrote it"},
		{"libvirt/queues of e1000", libvirt, func(r *cache.Record) { r.Device.Model, r.Queues = "e1000", 2 }, "queues", "set device.model to virtio-non-transitional"},
		{"libvirt/queues of usb-net", libvirt, func(r *cache.Record) { r.Device.Model, r.Queues = "usb-net", 2 }, "queues", "run Teardown, and Setup with one queue"},
		{"libvirt/vhost of e1000e", libvirt, device(cache.Device{Model: "e1000e", Driver: "vhost"}), "device.driver", "leave this field empty"},
		{"libvirt/rom of usb-net", libvirt, device(cache.Device{Model: "usb-net", ROM: "off"}), "device.rom", "leave this field empty"},
		{"libvirt/model of a virtual function", libvirt, func(r *cache.Record) { records.SRIOV(r); r.Device.Model = "virtio" }, "device.model", "leave it out"},
		{"libvirt/forwards of slirp", libvirt, func(r *cache.Record) {
			records.Slirp(r)
			r.Slirp.Forwards = []cache.Forward{{Protocol: "tcp", First: 80, Last: 80, Guest: 80}}
		}, "slirp.forwards", "leave binding.slirp.ports out"},
		{"libvirt/search domains of slirp", libvirt, func(r *cache.Record) { records.Slirp(r); r.DNS = &cache.DNS{Search: []string{"pod.example"}} }, "dns.search", "leave it out"},
		{"libvirt/vhost of passt", libvirt, func(r *cache.Record) { records.Passt(r); r.Device.Driver = "vhost" }, "device.driver", "leave it out"},
		{"libvirt/place of a virtual function", libvirt, func(r *cache.Record) { records.SRIOV(r); r.SRIOV.PCIAddress = "3:10.1" }, "sriov.pciAddress", "want the form 0000:03:10.1"},
		{"libvirt/place in another domain", libvirt, device(cache.Device{PCIAddress: "0001:00:01.0"}), "device.pciAddress", "the domain 0000 alone"},
		{"libvirt/place of usb-net", libvirt, device(cache.Device{Model: "usb-net", PCIAddress: "0000:00:02.0"}), "device.pciAddress", "leave this field empty"},
		{"libvirt/index of usb-net", libvirt, device(cache.Device{Model: "usb-net", ACPIIndex: 1}), "device.acpiIndex", "leave this field out"},
		{"libvirt/place of the bridge", libvirt, device(cache.Device{PCIAddress: "0000:00:00.0"}), "device.pciAddress", "want another slot"},
		{"libvirt/boot order", libvirt, device(cache.Device{BootOrder: 1 << 31}), "device.bootOrder", "want at most 2147483647"},
		{"libvirt/place", libvirt, device(cache.Device{PCIAddress: "1:0.0"}), "device.pciAddress", "want the form 0000:03:10.1"},

		{"qemu/invalid record", plain, func(r *cache.Record) { r.Tap = "" }, "tap", "want 1 to 15"},
		{"qemu/newer record", plain, func(r *cache.Record) { r.Version++ }, "version", "use the version of guestwire that wrote it"},
		{"qemu/queues of e1000", plain, func(r *cache.Record) { r.Device.Model, r.Queues = "e1000", 2 }, "queues", "set device.model to virtio-non-transitional"},
		{"qemu/vhost of e1000e", vhost, device(cache.Device{Model: "e1000e", Driver: "vhost"}), "device.driver", "or set device.model to"},
		{"qemu/vhost without Vhost", plain, device(cache.Device{Driver: "vhost"}), "device.driver", "set Options.Vhost"},
		{"qemu/vhost of passt", qemuWith(qemu.Options{Socket: "/s"}), func(r *cache.Record) { records.Passt(r); r.Device.Driver = "vhost" }, "device.driver", "leave it out"},
		{"qemu/rom of usb-net", plain, device(cache.Device{Model: "usb-net", ROM: "off"}), "device.rom", "leave this field empty"},
		{"qemu/place of usb-net", plain, device(cache.Device{Model: "usb-net", PCIAddress: "0000:00:02.0"}), "device.pciAddress", "leave this field empty"},
		{"qemu/index of usb-net", plain, device(cache.Device{Model: "usb-net", ACPIIndex: 1}), "device.acpiIndex", "leave this field empty"},
		{"qemu/a board's device", plain, device(cache.Device{Model: "lan9118"}), "device.model", "set this field to virtio-non-transitional"},
		{"qemu/another board's device", plain, device(cache.Device{Model: "smc91c111"}), "device.model", "set this field to"},
		{"qemu/place on another bus", plain, device(cache.Device{PCIAddress: "0000:01:00.0"}), "device.pciAddress", "set Options.Bus"},
		{"qemu/place in another domain", plain, device(cache.Device{PCIAddress: "0001:00:00.0"}), "device.pciAddress", "set Options.Bus"},
		{"qemu/macvtap by name", plain, records.Macvtap, "options.fds", "phase2.OpenTap"},
		{"qemu/too few descriptors", qemuWith(qemu.Options{FDs: []string{"3"}}), twoQueues, "options.fds", "want one for each queue"},
		{"qemu/too many descriptors", qemuWith(qemu.Options{FDs: []string{"3", "4"}}), same, "options.fds", "want one for each queue"},
		{"qemu/two descriptors in one", qemuWith(qemu.Options{FDs: []string{"3:4"}}), same, "options.fds", "no colon"},
		{"qemu/no descriptor", qemuWith(qemu.Options{FDs: []string{""}}), same, "options.fds", "want numbers"},
		{"qemu/descriptors of passt", qemuWith(qemu.Options{Socket: "/s", FDs: []string{"3"}}), forPasst, "options.fds", "leave this field empty"},
		{"qemu/descriptors of a function", qemuWith(qemu.Options{FDs: []string{"3"}}), records.SRIOV, "options.fds", "leave this field empty"},
		{"qemu/vhost's descriptors without the tap's", qemuWith(qemu.Options{Vhost: true, VhostFDs: []string{"3"}}), same, "options.vhostFDs", "want as many"},
		{"qemu/vhost's descriptors without Vhost", qemuWith(qemu.Options{FDs: []string{"3"}, VhostFDs: []string{"4"}}), same, "options.vhostFDs", "needs Vhost"},
		{"qemu/vhost's descriptors of rtl8139", qemuWith(qemu.Options{Vhost: true, FDs: []string{"3"}, VhostFDs: []string{"4"}}), device(cache.Device{Model: "rtl8139"}), "options.vhostFDs", "virtio model"},
		{"qemu/vhost's descriptors of passt", qemuWith(qemu.Options{Socket: "/s", Vhost: true, VhostFDs: []string{"4"}}), forPasst, "options.vhostFDs", "a tap"},
		{"qemu/vhost's descriptors with a colon", qemuWith(qemu.Options{Vhost: true, FDs: []string{"3"}, VhostFDs: []string{":"}}), same, "options.vhostFDs", "no colon"},
		{"qemu/passt without a socket", plain, forPasst, "options.socket", "want the path"},
		{"qemu/a socket of slirp", qemuWith(qemu.Options{Socket: "/run/passt"}), records.Slirp, "options.socket", "leave this field empty"},
		{"qemu/a socket without passt", qemuWith(qemu.Options{Socket: "/run/passt"}), same, "options.socket", "leave this field empty"},
		{"qemu/VLAN of a function", plain, func(r *cache.Record) { records.SRIOV(r); r.SRIOV.VLAN = 5 }, "sriov.vlan", "set it at the card"},
		{"qemu/managed function", plain, func(r *cache.Record) { records.SRIOV(r); r.SRIOV.Managed = true }, "sriov.managed", "bind it"},
		{"qemu/id", qemuWith(qemu.Options{ID: "a,b"}), same, "options.id", "set Options.ID"},
		{"qemu/id of a digit", qemuWith(qemu.Options{ID: "0a"}), same, "options.id", "wants a letter"},

		{"cloudhypervisor/invalid record", cloud, shortMTU, "mtu", "record of interface"},
		{"cloudhypervisor/sriov", cloud, records.SRIOV, "binding", "--device path="},
		{"cloudhypervisor/passt", cloud, forPasst, "binding", "masquerade"},
		{"cloudhypervisor/slirp", cloud, records.Slirp, "binding", "masquerade"},
		{"cloudhypervisor/macvtap by name", cloud, records.Macvtap, "options.fds", "open its queues"},
		{"cloudhypervisor/too many descriptors", cloudWith(cloudhypervisor.Options{FDs: []int{3, 4}}), same, "options.fds", "one for each queue"},
		{"cloudhypervisor/too few descriptors", cloudWith(cloudhypervisor.Options{FDs: []int{3}}), twoQueues, "options.fds", "one for each queue"},
		{"cloudhypervisor/standard error", cloudWith(cloudhypervisor.Options{FDs: []int{2}}), same, "options.fds", "3 or higher"},
		{"cloudhypervisor/queues", cloudWith(cloudhypervisor.Options{VCPUs: 2}), func(r *cache.Record) { r.Queues = 3 }, "queues", "more CPUs"},
		{"cloudhypervisor/CPUs", cloudWith(cloudhypervisor.Options{VCPUs: -1}), same, "options.vcpus", "not known"},
		{"cloudhypervisor/e1000", cloud, device(cache.Device{Model: "e1000"}), "device.model", "leave this field empty"},
		{"cloudhypervisor/transitional", cloud, device(cache.Device{Model: "virtio-transitional"}), "device.model", "virtio 1.0 alone"},
		{"cloudhypervisor/vhost", cloud, device(cache.Device{Driver: "vhost"}), "device.driver", "leave this field empty"},
		{"cloudhypervisor/boot", cloud, device(cache.Device{BootOrder: 1}), "device.bootOrder", "leave this field out"},
		{"cloudhypervisor/rom", cloud, device(cache.Device{ROM: "on"}), "device.rom", "leave this field empty"},
		{"cloudhypervisor/rom's file", cloud, device(cache.Device{ROM: "/rom"}), "device.rom", "leave this field empty"},
		{"cloudhypervisor/index", cloud, device(cache.Device{ACPIIndex: 1}), "device.acpiIndex", "by the MAC"},
		{"cloudhypervisor/link down", cloud, device(cache.Device{LinkState: "down"}), "device.linkState", "plug the device later"},
		{"cloudhypervisor/alias", cloud, device(cache.Device{Alias: "_net0"}), "device.alias", "name another one"},
		{"cloudhypervisor/place on another bus", cloud, device(cache.Device{PCIAddress: "0000:01:05.0"}), "device.pciAddress", "bus 00"},
		{"cloudhypervisor/place of another function", cloud, device(cache.Device{PCIAddress: "0000:00:05.1"}), "device.pciAddress", "function 0"},
		{"cloudhypervisor/place of the bridge", cloud, device(cache.Device{PCIAddress: "0001:00:00.0"}), "device.pciAddress", "devices 01"},

		{"crosvm/invalid record", cros, shortMTU, "mtu", "record of interface"},
		{"crosvm/sriov", cros, records.SRIOV, "binding", "--vfio"},
		{"crosvm/passt without shared memory", cros, forPasst, "passt.vhostUser", "run Setup again"},
		{"crosvm/passt without a socket", cros, shared, "options.socket", "want the path"},
		{"crosvm/a socket without passt", crosvmWith(crosvm.Options{Socket: "/s"}), same, "options.socket", "leave this field empty"},
		{"crosvm/descriptor of passt", crosvmWith(crosvm.Options{Socket: "/s", FD: 3}), shared, "options.fd", "no tap"},
		{"crosvm/slirp", cros, records.Slirp, "binding", "masquerade"},
		{"crosvm/macvtap by name", cros, records.Macvtap, "options.fd", "name the descriptor"},
		{"crosvm/standard error", crosvmWith(crosvm.Options{FD: 2}), same, "options.fd", "want 3 or higher"},
		{"crosvm/no descriptor", crosvmWith(crosvm.Options{FD: -1}), same, "options.fd", "want 3 or higher"},
		{"crosvm/descriptor of several queues", crosvmWith(crosvm.Options{FD: 3, VCPUs: 2}), twoQueues, "options.fd", "by the tap's name"},
		{"crosvm/queues of vhost", crosvmWith(crosvm.Options{VCPUs: 2}), func(r *cache.Record) { r.Queues, r.Device.Driver = 2, "vhost" }, "queues", "with one queue"},
		{"crosvm/queues of macvtap", crosvmWith(crosvm.Options{FD: 3, VCPUs: 2}), func(r *cache.Record) { records.Macvtap(r); r.Queues = 2 }, "queues", "with one queue"},
		{"crosvm/queues of one CPU", cros, twoQueues, "queues", "more CPUs"},
		{"crosvm/queues", crosvmWith(crosvm.Options{VCPUs: 2}), func(r *cache.Record) { r.Queues = 3 }, "queues", "more CPUs"},
		{"crosvm/CPUs", crosvmWith(crosvm.Options{VCPUs: -1}), same, "options.vcpus", "or 0: one"},
		{"crosvm/e1000", cros, device(cache.Device{Model: "e1000"}), "device.model", "virtio 1.0 alone"},
		{"crosvm/boot", cros, device(cache.Device{BootOrder: 1}), "device.bootOrder", "leave this field out"},
		{"crosvm/rom", cros, device(cache.Device{ROM: "on"}), "device.rom", "leave this field empty"},
		{"crosvm/index", cros, device(cache.Device{ACPIIndex: 1}), "device.acpiIndex", "by the MAC"},
		{"crosvm/link down", cros, device(cache.Device{LinkState: "down"}), "device.linkState", "leave this field empty"},
		{"crosvm/alias", cros, device(cache.Device{Alias: "net0"}), "device.alias", "no names"},
		{"crosvm/place in another domain", cros, device(cache.Device{PCIAddress: "0001:00:05.0"}), "device.pciAddress", "domain 0000"},
		{"crosvm/place on another bus", cros, device(cache.Device{PCIAddress: "0000:01:05.0"}), "device.pciAddress", "bus 00"},
		{"crosvm/place of another function", cros, device(cache.Device{PCIAddress: "0000:00:05.1"}), "device.pciAddress", "function 0"},

		{"firecracker/invalid record", fire, shortMTU, "mtu", "record of interface"},
		{"firecracker/sriov", fire, records.SRIOV, "binding", "another VMM"},
		{"firecracker/slirp", fire, records.Slirp, "binding", "masquerade"},
		{"firecracker/passt", fire, forPasst, "binding", "masquerade"},
		{"firecracker/macvtap", fire, records.Macvtap, "binding", "redirect"},
		{"firecracker/queues", fire, twoQueues, "queues", "run Teardown, and Setup with one queue"},
		{"firecracker/rtl8139", fire, device(cache.Device{Model: "rtl8139"}), "device.model", "leave this field empty"},
		{"firecracker/vhost", fire, device(cache.Device{Driver: "vhost"}), "device.driver", "leave this field empty"},
		{"firecracker/boot", fire, device(cache.Device{BootOrder: 1}), "device.bootOrder", "leave this field out"},
		{"firecracker/rom's file", fire, device(cache.Device{ROM: "/rom"}), "device.rom", "leave this field empty"},
		{"firecracker/place", fire, device(cache.Device{PCIAddress: "0000:00:05.0"}), "device.pciAddress", "leave this field empty"},
		{"firecracker/index", fire, device(cache.Device{ACPIIndex: 1}), "device.acpiIndex", "by the MAC"},
		{"firecracker/link down", fire, device(cache.Device{LinkState: "down"}), "device.linkState", "leave this field empty"},
		{"firecracker/alias", fire, device(cache.Device{Alias: "ua-blue"}), "device.alias", "letters, digits and underscores"},

		{"passt/invalid record", passtAt("/s"), func(r *cache.Record) { records.Passt(r); r.MTU = 1 }, "mtu", "record of interface"},
		{"passt/another binding", passtAt("/s"), same, "binding", "needs no passt"},
		{"passt/no socket", passtAt(""), forPasst, "socket", "missing"},
		{"passt/long socket", passtAt("/" + strings.Repeat("s", 107)), forPasst, "socket", "108 bytes, want at most 107"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := records.Bridge()
			c.edit(rec)
			made, err := c.describe(rec)
			var field *cache.FieldError
			if made || !errors.As(err, &field) {
				t.Fatalf("described: %t, %v; want a *cache.FieldError alone", made, err)
			}
			text := err.Error()
			if field.Field != c.field || !strings.Contains(text, c.words) || !strings.Contains(text, "interface ") || !strings.Contains(text, rec.Name) {
				t.Errorf("got %q, want interface %s, field %s and %q", text, rec.Name, c.field, c.words)
			}
		})
	}
}
