package domain_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func record() *cache.Record {
	return &cache.Record{
		Version: cache.Version,
		Name:    "eth0",
		Binding: cache.BindingBridge,
		Tap:     "eth0-tap",
		Queues:  1,
		MAC:     cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c},
		MTU:     1450,
	}
}

// cases are the elements in testdata, with the names of their files.
var cases = []struct {
	name string
	edit func(*cache.Record)
}{
	{"default", func(*cache.Record) {}},
	{"virtio-queues", func(r *cache.Record) { r.Device.Model, r.Queues = "virtio", 4 }},
	{"virtio-transitional-qemu", func(r *cache.Record) { r.Device.Model, r.Device.Driver = "virtio-transitional", "qemu" }},
	{"vhost-queues", func(r *cache.Record) { r.Device.Driver, r.Queues = "vhost", 2 }},
	{"e1000", func(r *cache.Record) { r.Device.Model = "e1000" }},
	{"e1000e-qemu", func(r *cache.Record) { r.Device.Model, r.Device.Driver = "e1000e", "qemu" }},
	{"rtl8139", func(r *cache.Record) { r.Device.Model = "rtl8139" }},
	{"usb-net", func(r *cache.Record) { r.Device.Model = "usb-net" }},
	{"spapr-vlan", func(r *cache.Record) { r.Device.Model = "spapr-vlan" }},
	{"lan9118", func(r *cache.Record) { r.Device.Model = "lan9118" }},
	{"smc91c111", func(r *cache.Record) { r.Device.Model = "smc91c111" }},
	{"boot", func(r *cache.Record) { r.Device.BootOrder = 1 }},
	{"boot-without-rom", func(r *cache.Record) { r.Device.BootOrder, r.Device.ROM = 2, "off" }},
	{"rom-on", func(r *cache.Record) { r.Device.ROM = "on" }},
	{"rom-file", func(r *cache.Record) { r.Device.ROM = "/usr/lib/ipxe/a&b.rom" }},
	{"placed", func(r *cache.Record) { r.Device.PCIAddress, r.Device.ACPIIndex = "0000:00:1d.5", 3 }},
	{"alias", func(r *cache.Record) { r.Device.Alias = "blue_net-1" }},
	{"alias-prefixed", func(r *cache.Record) { r.Device.Alias = "ua-blue" }},
	{"link-down", func(r *cache.Record) { r.Device.LinkState = "down" }},
	{"everything", func(r *cache.Record) {
		r.Queues, r.MTU = 256, syntax.MaxMTU
		r.Device = cache.Device{
			Model: "virtio-non-transitional", Driver: "vhost", BootOrder: 1, ROM: "/rom", PCIAddress: "0000:01:00.0",
			ACPIIndex: 1, Alias: "ua-a", LinkState: "up",
		}
	}},
	{"macvtap", macvtap},
	{"macvtap-queues", func(r *cache.Record) { macvtap(r); r.Queues, r.Device.Driver = 2, "vhost" }},
	{"sriov", sriov},
	{"sriov-managed", func(r *cache.Record) { sriov(r); r.SRIOV.Managed = true }},
	{"sriov-everything", func(r *cache.Record) {
		sriov(r)
		r.SRIOV = &cache.SRIOV{PCIAddress: "00a1:3f:1e.7", VLAN: 42}
		r.Device = cache.Device{BootOrder: 1, ROM: "/rom", PCIAddress: "0000:01:00.0", ACPIIndex: 1, Alias: "ua-a"}
	}},
	{"passt", passt},
	{"passt-forwards", func(r *cache.Record) {
		passt(r)
		r.Passt.Forwards = []cache.Forward{
			{Protocol: "tcp", First: 80, Last: 80, Guest: 80}, {Protocol: "udp", First: 53, Last: 53, Guest: 5353},
			{Protocol: "tcp", First: 8000, Last: 8100, Guest: 8000}, {Protocol: "tcp", First: 9000, Last: 9009, Guest: 90},
		}
	}},
	{"slirp", slirp},
	{"slirp-4", func(r *cache.Record) {
		slirp(r)
		r.Slirp = &cache.Slirp{IPv4: netip.MustParsePrefix("10.9.0.0/27")}
		r.Device.Model, r.Device.LinkState = "e1000e", "down"
	}},
	{"passt-e1000e", func(r *cache.Record) { passt(r); r.Device.Model, r.Device.LinkState = "e1000e", "down" }},
}

// macvtap, sriov, passt and slirp make the record one of that binding.
func macvtap(r *cache.Record) { r.Binding, r.Tap = cache.BindingMacvtap, r.Name }

func sriov(r *cache.Record) {
	r.Binding, r.Tap, r.MTU, r.SRIOV = cache.BindingSRIOV, "", 0, &cache.SRIOV{PCIAddress: "0000:03:10.1"}
}

func passt(r *cache.Record) { r.Binding, r.Tap, r.Passt = cache.BindingPasst, "", &cache.Passt{} }

func slirp(r *cache.Record) {
	r.Binding, r.Tap, r.MTU = cache.BindingSlirp, "", 1500
	r.Slirp = &cache.Slirp{IPv4: netip.MustParsePrefix("10.0.2.0/24"), IPv6: netip.MustParsePrefix("fd10:0:2::/64")}
}

func element(t *testing.T, edit func(*cache.Record)) string {
	t.Helper()
	rec := record()
	edit(rec)
	iface, err := domain.Interface(rec)
	if err != nil {
		t.Fatal(err)
	}
	xml, err := iface.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return xml + "\n"
}

func TestInterface(t *testing.T) {
	var files []string
	for _, c := range cases {
		file := c.name + ".xml"
		files = append(files, file)
		t.Run(c.name, func(t *testing.T) {
			got := element(t, c.edit)
			golden.Compare(t, file, got)
		})
	}
	golden.Only(t, ".xml", files...)
}

// TestSchema: every golden file is valid by libvirt's own schema. An element that is not valid fails.
func TestSchema(t *testing.T) {
	for _, program := range []string{"virt-xml-validate", "xmllint"} {
		if _, err := exec.LookPath(program); err != nil {
			nstest.Skip(t, err.Error()+" (Debian: libvirt-clients, libxml2-utils)")
		}
	}
	validate := func(element string) (string, error) {
		file := filepath.Join(t.TempDir(), "domain.xml")
		doc := "<domain type='qemu'><name>a</name><memory>65536</memory><os><type>hvm</type></os><devices>" + element + "</devices></domain>"
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			return "", err
		}
		out, err := exec.Command("virt-xml-validate", file, "domain").CombinedOutput()
		return string(out), err
	}
	for _, c := range cases {
		golden, err := os.ReadFile(filepath.Join("testdata", c.name+".xml"))
		if err != nil {
			t.Fatal(err)
		}
		if out, err := validate(string(golden)); err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
	}
	if out, err := validate(strings.Replace(element(t, cases[0].edit), "managed", "unmanaged", 1)); err == nil {
		t.Errorf("the schema accepts an attribute that libvirt does not have:\n%s", out)
	}
}

func TestInterfaceErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(*cache.Record)
		field string
		words string // what the message asks the user to do
	}{
		{"invalid record", func(r *cache.Record) { r.Tap = "" }, "tap", "want 1 to 15"},
		{"newer record", func(r *cache.Record) { r.Version++ }, "version", "use the version of guestwire that wrote it"},
		{"queues of e1000", func(r *cache.Record) { r.Device.Model, r.Queues = "e1000", 2 }, "queues", "set device.model to virtio-non-transitional"},
		{"queues of usb-net", func(r *cache.Record) { r.Device.Model, r.Queues = "usb-net", 2 }, "queues", "run Setup again with one queue"},
		{"vhost of e1000e", func(r *cache.Record) { r.Device.Model, r.Device.Driver = "e1000e", "vhost" }, "device.driver", "leave this field empty"},
		{"rom of usb-net", func(r *cache.Record) { r.Device.Model, r.Device.ROM = "usb-net", "off" }, "device.rom", "leave this field empty"},
		{"model of a virtual function", func(r *cache.Record) { sriov(r); r.Device.Model = "virtio" }, "device.model", "leave it out"},
		{"forwards of slirp", func(r *cache.Record) {
			slirp(r)
			r.Slirp.Forwards = []cache.Forward{{Protocol: "tcp", First: 80, Last: 80, Guest: 80}}
		}, "slirp.forwards", "leave binding.slirp.ports out"},
		{"search domains of slirp", func(r *cache.Record) { slirp(r); r.DNS = &cache.DNS{Search: []string{"pod.example"}} }, "dns.search", "leave it out"},
		{"vhost of passt", func(r *cache.Record) { passt(r); r.Device.Driver = "vhost" }, "device.driver", "leave it out"},
		{"place of a virtual function", func(r *cache.Record) { sriov(r); r.SRIOV.PCIAddress = "3:10.1" }, "sriov.pciAddress", "want the form 0000:03:10.1"},
		{"place", func(r *cache.Record) { r.Device.PCIAddress = "1:0.0" }, "device.pciAddress", "want the form 0000:03:10.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := record()
			c.edit(rec)
			iface, err := domain.Interface(rec)
			var field *cache.FieldError
			if !errors.As(err, &field) {
				t.Fatalf("got %v, %v, want a *cache.FieldError", iface, err)
			}
			if field.Field != c.field || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), "eth0") {
				t.Errorf("got %q, want field %s and %q", err, c.field, c.words)
			}
		})
	}
}

func ExampleInterface() {
	iface, err := domain.Interface(&cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	xml, err := iface.Marshal()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(xml)
	// Output:
	// <interface type="ethernet">
	//   <mac address="02:73:53:00:b0:0c"></mac>
	//   <target dev="eth0-tap" managed="no"></target>
	//   <model type="virtio-non-transitional"></model>
	//   <mtu size="1450"></mtu>
	//   <rom enabled="no"></rom>
	// </interface>
}
