// Package crosvm describes the guest's network device to crosvm, from the record of Phase1: as the argument --net, or
// --vhost-user for a guest of passt. It follows crosvm's source. No guest was run, as crosvm needs KVM.
package crosvm

import (
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/internal/refusal"
)

// Options is what the record does not have. The zero value has crosvm open the tap by its name.
type Options struct {
	// FD is the open tap of phase2.OpenTap: the number of a descriptor that crosvm inherits, 3 or
	// higher. A macvtap needs it. With several queues crosvm wants none. 0: crosvm opens the tap.
	FD int

	// VCPUs is the number of CPUs with which the guest boots, and crosvm's --cpus. crosvm gives a
	// device with more queues than that a single one, and then cannot open the tap. 0: one CPU,
	// crosvm's default.
	VCPUs int

	// Socket is the path of passt's Unix socket, for a record of passt. Start passt first.
	Socket string
}

// Args returns the arguments of crosvm run for the record. It reads no files and asks no kernel.
//
// Run crosvm in the namespace, by launch.Start for example, also with FD: crosvm asks there for the MTU of the link
// with the tap's name. The guest gets that MTU by virtio. With vhost-net, the record's Driver, the guest learns its MTU
// by DHCP and router advertisements.
//
// For several queues crosvm sets the tap up itself, though it is up. That takes CAP_NET_ADMIN, with which crosvm can
// change the namespace. Prefer one queue.
//
// A guest of passt has a MAC of its own choice, not the record's, as --vhost-user has no key for it.
//
// A *cache.FieldError: the record is not valid, or crosvm cannot have what the record or the options want. Source:
// devices/src/virtio/net.rs, src/crosvm/cmdline.rs.
func Args(rec *cache.Record, o Options) ([]string, error) {
	return refusal.Describe(rec, func(rec *cache.Record) ([]string, error) { return newArgs(rec, o) })
}

func newArgs(rec *cache.Record, o Options) ([]string, error) {
	if err := check(rec, o); err != nil {
		return nil, err
	}
	argument, words := "--net", []string{"tap-name=" + quote(rec.Tap)}
	switch {
	case rec.Passt != nil:
		argument, words = "--vhost-user", []string{"type=net", "socket=" + quote(o.Socket)}
	case o.FD != 0:
		words = []string{"tap-fd=" + strconv.Itoa(o.FD)}
	}
	if rec.Passt == nil {
		words = append(words, "mac="+rec.MAC.String())
	}
	if rec.Queues > 1 {
		words = append(words, "vq-pairs="+strconv.Itoa(rec.Queues))
	}
	if rec.Device.Driver == "vhost" {
		words = append(words, "vhost-net")
	}
	if rec.Device.PCIAddress != "" {
		words = append(words, "pci-address="+rec.Device.PCIAddress)
	}
	return []string{argument, strings.Join(words, ",")}, nil
}

// quote returns the value as crosvm reads it. Without quotes, a tap called 1 would be a number to it, and a comma would
// end the value.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
}

// check refuses what crosvm cannot have.
func check(rec *cache.Record, o Options) error {
	d := rec.Device
	vhost, macvtap := d.Driver == "vhost", rec.Binding == cache.BindingMacvtap
	var r refusal.First
	r.Virtio(rec, "crosvm")
	segment, _ := r.Place(rec, "crosvm")
	r.If(segment != 0, "device.pciAddress", "%q, and crosvm has the domain 0000 alone: name such an address, or leave this field empty", d.PCIAddress)
	r.If(rec.SRIOV != nil, "binding", "sriov, which is no network device to crosvm: bind the function to vfio-pci, and use --vfio /sys/bus/pci/devices/ADDRESS")
	r.If(rec.Passt != nil && !rec.Passt.VhostUser, "passt.vhostUser", "false, and crosvm connects to passt by vhost-user alone: run Setup again with binding.passt.vhostUser")
	r.If(rec.Passt != nil && o.Socket == "", "options.socket", "missing, want the path at which passt listens")
	r.If(rec.Passt == nil && o.Socket != "", "options.socket", "%q, but the %s binding has no passt: leave this field empty", o.Socket, rec.Binding)
	r.If(rec.Passt != nil && o.FD != 0, "options.fd", "%d, but a guest of passt has no tap: leave this field out", o.FD)
	r.If(o.FD != 0 && o.FD < 3, "options.fd", "%d, want 3 or higher", o.FD)
	r.If(rec.Queues > 1 && (vhost || macvtap), "queues", "%d, and crosvm has one with vhost-net or a macvtap: run Teardown, and Setup with one queue", rec.Queues)
	r.If(rec.Queues > 1 && o.FD != 0, "options.fd", "%d, and crosvm opens several queues by the tap's name: leave this field out", o.FD)
	r.If(macvtap && o.FD == 0, "options.fd", "missing, and crosvm opens no macvtap by its name: open it, and name the descriptor here")
	r.If(o.VCPUs < 0, "options.vcpus", "%d, want a number of CPUs, or 0: one", o.VCPUs)
	r.If(rec.Queues > max(o.VCPUs, 1), "queues", "%d, and crosvm wants at most one for each of the guest's CPUs, %d: run Teardown, and Setup with fewer queues, or boot with more CPUs", rec.Queues, max(o.VCPUs, 1))
	r.If(d.Alias != "", "device.alias", "%q, and crosvm's devices have no names: leave this field empty", d.Alias)
	return r.Err()
}
