// Package cloudhypervisor describes the guest's network device to Cloud Hypervisor, from the record of Phase1: as the
// argument --net, or as NetConfig of the API. It follows the published schema. No guest was run, as Cloud Hypervisor
// needs KVM.
package cloudhypervisor

import (
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/internal/refusal"
)

// Options is what the record does not have. The zero value has Cloud Hypervisor open the tap by its name.
type Options struct {
	// FDs are the open queues of phase2.OpenTap, one for each of the record's Queues: the
	// numbers of descriptors that Cloud Hypervisor inherits, 3 or higher. A macvtap needs them.
	// Empty: Cloud Hypervisor opens the tap.
	FDs []int

	// VCPUs is the number of CPUs with which the guest boots. Cloud Hypervisor refuses more
	// queues than that. 0: not known.
	VCPUs int
}

// Net is a network device. In JSON it is the NetConfig of /vm.create and /vm.add-net.
type Net struct {
	// Tap is the tap's name. Empty: the tap is given by descriptors.
	Tap string `json:"tap,omitempty"`

	// MAC is the guest's.
	MAC cache.MAC `json:"mac"`

	// NumQueues is the number of queues in both directions: two for each of the record's
	// Queues.
	NumQueues int `json:"num_queues"`

	// ID is the device's name, for /vm.remove-device.
	ID string `json:"id"`

	// PCISegment and PCIDeviceID are the device's place. Nil: Cloud Hypervisor chooses.
	PCISegment  *int `json:"pci_segment,omitempty"`
	PCIDeviceID *int `json:"pci_device_id,omitempty"`

	// FDs are those of Options. A client of /vm.add-net sends the files with its request
	// (SCM_RIGHTS).
	FDs []int `json:"-"`
}

// NewNet returns the network device for the record. It reads no files and asks no kernel. It leaves out the MTU, as to
// set it takes CAP_NET_ADMIN: the guest gets the tap's MTU.
//
// A *cache.FieldError: the record is not valid, or Cloud Hypervisor cannot have what the record or the options want.
// Source: cloud-hypervisor.yaml (vmm/src/api/openapi), net_util/src/open_tap.rs.
func NewNet(rec *cache.Record, o Options) (*Net, error) {
	return refusal.Describe(rec, func(rec *cache.Record) (*Net, error) { return newNet(rec, o) })
}

func newNet(rec *cache.Record, o Options) (*Net, error) {
	segment, device, err := check(rec, o)
	if err != nil {
		return nil, err
	}
	n := &Net{Tap: rec.Tap, MAC: rec.MAC, NumQueues: 2 * rec.Queues, ID: rec.Device.Alias}
	if n.ID == "" {
		n.ID = "net-" + rec.Name // an id cannot start with an underscore, which a name can
	}
	if len(o.FDs) > 0 {
		n.Tap, n.FDs = "", slices.Clone(o.FDs)
	}
	if rec.Device.PCIAddress != "" {
		n.PCISegment, n.PCIDeviceID = &segment, &device
	}
	return n, nil
}

// Arg returns the device as the value of the argument --net.
func (n *Net) Arg() string {
	var words []string
	if n.Tap != "" {
		words = append(words, "tap="+n.Tap)
	}
	if len(n.FDs) > 0 {
		var fds []string
		for _, fd := range n.FDs {
			fds = append(fds, strconv.Itoa(fd))
		}
		words = append(words, "fd=["+strings.Join(fds, ",")+"]")
	}
	words = append(words, "mac="+n.MAC.String(), "num_queues="+strconv.Itoa(n.NumQueues), "id="+n.ID)
	if n.PCISegment != nil {
		words = append(words, "pci_segment="+strconv.Itoa(*n.PCISegment))
	}
	if n.PCIDeviceID != nil {
		words = append(words, "pci_device_id="+strconv.Itoa(*n.PCIDeviceID))
	}
	return strings.Join(words, ",")
}

// check refuses what Cloud Hypervisor cannot have, and returns the device's place.
func check(rec *cache.Record, o Options) (segment, device int, err error) {
	d := rec.Device
	var r refusal.First
	r.Virtio(rec, "Cloud Hypervisor")
	r.If(rec.SRIOV != nil, "binding", "sriov, which is no network device to Cloud Hypervisor: bind the function to vfio-pci, and use --device path=/sys/bus/pci/devices/ADDRESS")
	r.If(rec.Passt != nil, "binding", "passt, whose socket Cloud Hypervisor does not speak: use the masquerade binding, or QEMU")
	r.If(rec.Binding == cache.BindingMacvtap && len(o.FDs) == 0, "options.fds", "missing, and Cloud Hypervisor opens no macvtap by its name: open its queues, and name the descriptors here")
	r.If(len(o.FDs) > 0 && len(o.FDs) != rec.Queues, "options.fds", "%d descriptors, but the record has %d queues: want one for each queue", len(o.FDs), rec.Queues)
	r.If(slices.ContainsFunc(o.FDs, func(fd int) bool { return fd < 3 }), "options.fds", "%d, want numbers of 3 or higher", o.FDs)
	r.If(o.VCPUs < 0, "options.vcpus", "%d, want a number of CPUs, or 0: not known", o.VCPUs)
	r.If(o.VCPUs > 0 && rec.Queues > o.VCPUs, "queues", "%d, and Cloud Hypervisor wants at most one for each of the guest's %d CPUs: run Setup again with fewer queues, or boot with more CPUs", rec.Queues, o.VCPUs)
	r.If(d.Driver == "vhost", "device.driver", "vhost, which Cloud Hypervisor does not use: leave this field empty")
	r.If(strings.HasPrefix(d.Alias, "_"), "device.alias", "%q, and Cloud Hypervisor keeps names with an underscore in front for itself: name another one", d.Alias)
	segment, device = r.Place(rec, "Cloud Hypervisor")
	return segment, device, r.Err()
}
