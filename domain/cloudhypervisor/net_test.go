package cloudhypervisor_test

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/cloudhypervisor"
	"github.com/guestwire/guestwire/internal/test/records"
)

// everything makes a device with all that it can have.
func everything(r *cache.Record, o *cloudhypervisor.Options) {
	r.Queues, o.FDs, o.VCPUs = 4, []int{3, 4, 5, 6}, 4
	r.Device = cache.Device{Model: "virtio", Driver: "qemu", ROM: "off", PCIAddress: "0001:00:1f.0", Alias: "ua-blue", LinkState: "up"}
}

// cases are the devices in testdata, with the names of their files.
var cases = records.Cases[cloudhypervisor.Options]{
	"default": func(*cache.Record, *cloudhypervisor.Options) {},
	"queues":  func(r *cache.Record, _ *cloudhypervisor.Options) { r.Queues = 2 },
	"fd":      func(_ *cache.Record, o *cloudhypervisor.Options) { o.FDs = []int{3} },
	"macvtap": func(r *cache.Record, o *cloudhypervisor.Options) {
		r.Binding, r.Tap, r.Queues, o.FDs = cache.BindingMacvtap, r.Name, 2, []int{3, 7}
	},
	"underscore": func(r *cache.Record, _ *cloudhypervisor.Options) { r.Name, r.Tap = "_eth0.1", "_eth0.1-tap" },
	"everything": everything,
}

func net(t *testing.T, r *cache.Record, o cloudhypervisor.Options) *cloudhypervisor.Net {
	n, err := cloudhypervisor.NewNet(r, o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNet(t *testing.T) {
	records.Golden(t, ".txt", cases, func(t *testing.T, r *cache.Record, o cloudhypervisor.Options) string {
		n := net(t, r, o)
		return "--net " + n.Arg() + "\n" + records.JSON(t, n) + "\n"
	})
}

// netConfig is the schema NetConfig of vmm/src/api/openapi/cloud-hypervisor.yaml, by the commit 00f68228812d of 2026:
// the properties with their types. None is required. The schema does not forbid others.
var netConfig = map[string]records.Property{
	"tap": {Kind: "string"}, "ip": {Kind: "string"}, "mask": {Kind: "string"}, "mac": {Kind: "string"}, "host_mac": {Kind: "string"},
	"mtu": {Kind: "integer"}, "iommu": {Kind: "boolean"}, "num_queues": {Kind: "integer"}, "queue_size": {Kind: "integer"},
	"vhost_user": {Kind: "boolean"}, "vhost_socket": {Kind: "string"}, "vhost_mode": {Kind: "string"}, "id": {Kind: "string"},
	"pci_segment": {Kind: "integer"}, "pci_device_id": {Kind: "integer"}, "rate_limiter_config": {Kind: "object"},
	"offload_tso": {Kind: "boolean"}, "offload_ufo": {Kind: "boolean"}, "offload_csum": {Kind: "boolean"},
}

// chosen are the properties that the package sets. The others are the caller's, or take capabilities.
var chosen = []string{"tap", "mac", "num_queues", "id", "pci_segment", "pci_device_id"}

// TestSchema: each property of the object is one of the schema, of its type, and each that the package wants to set is
// set by one of the cases.
func TestSchema(t *testing.T) {
	objects := map[string]any{}
	for name := range cases {
		r, o := cases.Of(name)
		n := net(t, r, o)
		objects[name] = n
		// The argument has the same keys, but for the rate limiter and the descriptors.
		for word := range strings.SplitSeq(strings.NewReplacer("[", "", "]", "").Replace(n.Arg()), ",") {
			key, _, ok := strings.Cut(word, "=")
			if ok && key != "fd" && netConfig[key].Kind == "" {
				t.Errorf("%s: --net has the key %s", name, key)
			}
		}
	}
	records.Schema(t, netConfig, chosen, objects)
}
