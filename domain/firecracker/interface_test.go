package firecracker_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/firecracker"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/records"
)

// cases are the devices in testdata, with the names of their files.
var cases = []struct {
	name string
	edit func(*cache.Record)
}{
	{"default", func(*cache.Record) {}},
	{"mtu-least", func(r *cache.Record) { r.MTU = syntax.MinMTU }},
	{"mtu-most", func(r *cache.Record) { r.MTU = syntax.MaxMTU }},
	{"name", func(r *cache.Record) { r.Name, r.Tap = "_eth-0.1", "_eth-0.1-tap" }},
	{"everything", func(r *cache.Record) {
		r.Device = cache.Device{Model: "virtio-non-transitional", Driver: "qemu", ROM: "off", Alias: "ua_blue", LinkState: "up"}
	}},
}

func TestNetworkInterface(t *testing.T) {
	var files []string
	for _, c := range cases {
		file := c.name + ".txt"
		files = append(files, file)
		t.Run(c.name, func(t *testing.T) {
			rec := records.Bridge()
			c.edit(rec)
			before := *rec
			n, err := firecracker.NewNetworkInterface(rec)
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
			got := "PUT " + n.Path() + "\n" + string(object) + "\n"
			golden.Compare(t, file, got)
		})
	}
	golden.Only(t, ".txt", files...)
}

// property is one of the schema NetworkInterface of src/firecracker/swagger/firecracker.yaml, version 1.17.0-dev, by
// the commit 004d935399ba of 2026. Firecracker refuses properties that the schema does not have (deny_unknown_fields).
type property struct {
	kind     string
	required bool
	min, max int64 // of an integer
}

var schema = map[string]property{
	"iface_id":        {kind: "string", required: true},
	"host_dev_name":   {kind: "string", required: true},
	"guest_mac":       {kind: "string"},
	"mtu":             {kind: "integer", min: 68, max: 65535},
	"rx_rate_limiter": {kind: "object"},
	"tx_rate_limiter": {kind: "object"},
}

// chosen are the properties that the package sets. The rate limiters are the caller's.
var chosen = []string{"iface_id", "host_dev_name", "guest_mac", "mtu"}

// TestSchema: each property of the object is one of the schema, of its type and within its limits, the required ones
// are there, and each that the package wants to set is set.
func TestSchema(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases {
		rec := records.Bridge()
		c.edit(rec)
		n, err := firecracker.NewNetworkInterface(rec)
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
			want := schema[name]
			switch v := value.(type) {
			case string:
				if want.kind != "string" || v == "" {
					t.Errorf("%s: %s is %q, want %+v", c.name, name, v, want)
				}
			case json.Number:
				if i, err := v.Int64(); want.kind != "integer" || err != nil || i < want.min || i > want.max {
					t.Errorf("%s: %s is %v, want %+v", c.name, name, v, want)
				}
			default:
				t.Errorf("%s: %s is %v, want %+v", c.name, name, v, want)
			}
		}
		for name, p := range schema {
			if _, ok := object[name]; p.required && !ok {
				t.Errorf("%s: %s is missing", c.name, name)
			}
		}
	}
	for _, name := range chosen {
		if !seen[name] || schema[name].kind == "" {
			t.Errorf("%s: in the schema as %+v, set %v", name, schema[name], seen[name])
		}
		delete(seen, name)
	}
	if len(seen) > 0 {
		t.Errorf("the package sets %v as well", slices.Sorted(maps.Keys(seen)))
	}
}

// TestOldVersion: a Firecracker before 1.16 gets no MTU.
func TestOldVersion(t *testing.T) {
	n, err := firecracker.NewNetworkInterface(records.Bridge())
	if err != nil {
		t.Fatal(err)
	}
	n.MTU = 0
	if text, err := json.Marshal(n); err != nil || bytes.Contains(text, []byte("mtu")) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestNames: interfaces with names that are alike keep apart.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"eth0", "eth_0", "eth-0", "eth.0", "eth_2d0", "eth_5f2d0", "ETH0", "_eth0", "-eth0"} {
		rec := records.Bridge()
		rec.Name = name
		n, err := firecracker.NewNetworkInterface(rec)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[n.ID]; ok {
			t.Errorf("%s and %s are both %s", name, other, n.ID)
		}
		seen[n.ID] = name
		if strings.ContainsAny(n.ID, "-./") {
			t.Errorf("%s: Firecracker does not take the ID %s", name, n.ID)
		}
	}
}
