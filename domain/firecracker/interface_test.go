package firecracker_test

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/firecracker"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/records"
)

// cases are the devices in testdata, with the names of their files.
var cases = records.Cases[struct{}]{
	"default":   func(*cache.Record, *struct{}) {},
	"mtu-least": func(r *cache.Record, _ *struct{}) { r.MTU = syntax.MinMTU },
	"mtu-most":  func(r *cache.Record, _ *struct{}) { r.MTU = syntax.MaxMTU },
	"name":      func(r *cache.Record, _ *struct{}) { r.Name, r.Tap = "_eth-0.1", "_eth-0.1-tap" },
	"everything": func(r *cache.Record, _ *struct{}) {
		r.Device = cache.Device{Model: "virtio-non-transitional", Driver: "qemu", ROM: "off", Alias: "ua_blue", LinkState: "up"}
	},
}

func device(t *testing.T, r *cache.Record) *firecracker.NetworkInterface {
	n, err := firecracker.NewNetworkInterface(r)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNetworkInterface(t *testing.T) {
	records.Golden(t, ".txt", cases, func(t *testing.T, r *cache.Record, _ struct{}) string {
		n := device(t, r)
		return "PUT " + n.Path() + "\n" + records.JSON(t, n) + "\n"
	})
}

// schema is NetworkInterface of src/firecracker/swagger/firecracker.yaml, version 1.17.0-dev, by
// the commit 004d935399ba of 2026. Firecracker refuses properties that the schema does not have (deny_unknown_fields).
var schema = map[string]records.Property{
	"iface_id":        {Kind: "string", Required: true},
	"host_dev_name":   {Kind: "string", Required: true},
	"guest_mac":       {Kind: "string"},
	"mtu":             {Kind: "integer", Min: 68, Max: 65535},
	"rx_rate_limiter": {Kind: "object"},
	"tx_rate_limiter": {Kind: "object"},
}

// chosen are the properties that the package sets. The rate limiters are the caller's.
var chosen = []string{"iface_id", "host_dev_name", "guest_mac", "mtu"}

// TestSchema: each property of the object is one of the schema, of its type and within its limits, the required ones
// are there, and each that the package wants to set is set.
func TestSchema(t *testing.T) {
	objects := map[string]any{}
	for name := range cases {
		r, _ := cases.Of(name)
		objects[name] = device(t, r)
	}
	records.Schema(t, schema, chosen, objects)
}

// TestOldVersion: a Firecracker before 1.16 gets no MTU.
func TestOldVersion(t *testing.T) {
	n := device(t, records.Bridge())
	n.MTU = 0
	if text := records.JSON(t, n); strings.Contains(text, "mtu") {
		t.Error(text)
	}
}

// TestNames: interfaces with names that are alike keep apart.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"eth0", "eth_0", "eth-0", "eth.0", "eth_2d0", "eth_5f2d0", "ETH0", "_eth0", "-eth0"} {
		rec := records.Bridge()
		rec.Name = name
		n := device(t, rec)
		if other, ok := seen[n.ID]; ok {
			t.Errorf("%s and %s are both %s", name, other, n.ID)
		}
		seen[n.ID] = name
		if strings.ContainsAny(n.ID, "-./") {
			t.Errorf("%s: Firecracker does not take the ID %s", name, n.ID)
		}
	}
}
