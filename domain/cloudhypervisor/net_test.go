package cloudhypervisor_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/cloudhypervisor"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/records"
)

// everything makes a device with all that it can have.
func everything(r *cache.Record, o *cloudhypervisor.Options) {
	r.Queues, o.FDs, o.VCPUs = 4, []int{3, 4, 5, 6}, 4
	r.Device = cache.Device{Model: "virtio", Driver: "qemu", ROM: "off", PCIAddress: "0001:00:1f.0", Alias: "ua-blue", LinkState: "up"}
}

// cases are the devices in testdata, with the names of their files.
var cases = []struct {
	name string
	edit func(*cache.Record, *cloudhypervisor.Options)
}{
	{"default", func(*cache.Record, *cloudhypervisor.Options) {}},
	{"queues", func(r *cache.Record, _ *cloudhypervisor.Options) { r.Queues = 2 }},
	{"fd", func(_ *cache.Record, o *cloudhypervisor.Options) { o.FDs = []int{3} }},
	{"macvtap", func(r *cache.Record, o *cloudhypervisor.Options) {
		r.Binding, r.Tap, r.Queues, o.FDs = cache.BindingMacvtap, r.Name, 2, []int{3, 7}
	}},
	{"underscore", func(r *cache.Record, _ *cloudhypervisor.Options) { r.Name, r.Tap = "_eth0.1", "_eth0.1-tap" }},
	{"everything", everything},
}

func TestNet(t *testing.T) {
	var files []string
	for _, c := range cases {
		file := c.name + ".txt"
		files = append(files, file)
		t.Run(c.name, func(t *testing.T) {
			rec, o := records.Bridge(), cloudhypervisor.Options{}
			c.edit(rec, &o)
			before := *rec
			n, err := cloudhypervisor.NewNet(rec, o)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*rec, before) {
				t.Errorf("the record was %+v and is %+v", before, *rec)
			}
			object, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			got := "--net " + n.Arg() + "\n" + string(object) + "\n"
			golden.Compare(t, file, got)
		})
	}
	golden.Only(t, ".txt", files...)
}

// netConfig is the schema NetConfig of vmm/src/api/openapi/cloud-hypervisor.yaml, by the commit 00f68228812d of 2026:
// the properties with their types. None is required. The schema does not forbid others.
var netConfig = map[string]string{
	"tap": "string", "ip": "string", "mask": "string", "mac": "string", "host_mac": "string",
	"mtu": "integer", "iommu": "boolean", "num_queues": "integer", "queue_size": "integer",
	"vhost_user": "boolean", "vhost_socket": "string", "vhost_mode": "string", "id": "string",
	"pci_segment": "integer", "pci_device_id": "integer", "rate_limiter_config": "object",
	"offload_tso": "boolean", "offload_ufo": "boolean", "offload_csum": "boolean",
}

// chosen are the properties that the package sets. The others are the caller's, or take capabilities.
var chosen = []string{"tap", "mac", "num_queues", "id", "pci_segment", "pci_device_id"}

// TestSchema: each property of the object is one of the schema, of its type, and each that the package wants to set is
// set by one of the cases.
func TestSchema(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases {
		rec, o := records.Bridge(), cloudhypervisor.Options{}
		c.edit(rec, &o)
		n, err := cloudhypervisor.NewNet(rec, o)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&object); err != nil {
			t.Fatal(err)
		}
		for name, value := range object {
			seen[name] = true
			if got := typeOf(value); netConfig[name] != got {
				t.Errorf("%s: %s is of type %s, want %q", c.name, name, got, netConfig[name])
			}
		}
		// The argument has the same keys, but for the rate limiter and the descriptors.
		for word := range strings.SplitSeq(strings.NewReplacer("[", "", "]", "").Replace(n.Arg()), ",") {
			key, _, ok := strings.Cut(word, "=")
			if ok && key != "fd" && netConfig[key] == "" {
				t.Errorf("%s: --net has the key %s", c.name, key)
			}
		}
	}
	for _, name := range chosen {
		if !seen[name] || netConfig[name] == "" {
			t.Errorf("%s: in the schema as %q, set %v", name, netConfig[name], seen[name])
		}
		delete(seen, name)
	}
	if len(seen) > 0 {
		t.Errorf("the package sets %v as well", slices.Sorted(maps.Keys(seen)))
	}
}

// typeOf is the type of a value in JSON Schema's words.
func typeOf(value any) string {
	switch v := value.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case json.Number:
		if _, err := v.Int64(); err == nil {
			return "integer"
		}
		return "number"
	}
	return "object"
}
