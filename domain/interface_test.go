package domain_test

import (
	"fmt"
	"math"
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
	"github.com/guestwire/guestwire/internal/test/records"
)

func TestMain(m *testing.M) { nstest.Main(m) }

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
	{"extremes", func(r *cache.Record) {
		r.Queues, r.MTU = syntax.MaxQueues, syntax.MinMTU
		r.Device = cache.Device{
			BootOrder: math.MaxInt32, ROM: "/" + strings.Repeat("r", 254), PCIAddress: "0000:00:1f.7",
			ACPIIndex: 16383, Alias: "-" + strings.Repeat("a", 63),
		}
	}},
	{"extreme-model", func(r *cache.Record) { r.Device.Model = strings.Repeat("m", 62) + "_-" }},
	{"macvtap", records.Macvtap},
	{"macvtap-queues", func(r *cache.Record) { records.Macvtap(r); r.Queues, r.Device.Driver = 2, "vhost" }},
	{"sriov", records.SRIOV},
	{"sriov-managed", func(r *cache.Record) { records.SRIOV(r); r.SRIOV.Managed = true }},
	{"sriov-everything", func(r *cache.Record) {
		records.SRIOV(r)
		r.SRIOV = &cache.SRIOV{PCIAddress: "00a1:3f:1e.7", VLAN: 42}
		r.Device = cache.Device{BootOrder: 1, ROM: "/rom", PCIAddress: "0000:01:00.0", ACPIIndex: 1, Alias: "ua-a"}
	}},
	{"passt", func(r *cache.Record) { records.Passt(r) }},
	{"passt-forwards", func(r *cache.Record) {
		records.Passt(r)
		r.Passt.Forwards = []cache.Forward{
			{Protocol: "tcp", First: 80, Last: 80, Guest: 80}, {Protocol: "udp", First: 53, Last: 53, Guest: 5353},
			{Protocol: "tcp", First: 8000, Last: 8100, Guest: 8000}, {Protocol: "tcp", First: 9000, Last: 9009, Guest: 90},
		}
	}},
	{"passt-vhost-user", func(r *cache.Record) { records.Passt(r); r.Passt.VhostUser = true }},
	{"slirp", records.Slirp},
	{"slirp-4", func(r *cache.Record) {
		records.Slirp(r)
		r.Slirp = &cache.Slirp{IPv4: netip.MustParsePrefix("10.9.0.0/27")}
		r.Device.Model, r.Device.LinkState = "e1000e", "down"
	}},
	{"passt-e1000e", func(r *cache.Record) { records.Passt(r); r.Device.Model, r.Device.LinkState = "e1000e", "down" }},
}

func element(t *testing.T, edit func(*cache.Record)) string {
	t.Helper()
	rec := records.Bridge()
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

// TestSchema: every golden file is valid by libvirt's own schema. One needs libvirt 11.1, such as Debian 13's:
// TestGolden of internal/rig/vm has such a libvirt define it on Debian 12 too. An element that is not valid fails.
func TestSchema(t *testing.T) {
	for _, program := range []string{"virsh", "virt-xml-validate", "xmllint"} {
		if _, err := exec.LookPath(program); err != nil {
			nstest.Skip(t, err.Error()+" (Debian: libvirt-clients, libxml2-utils)")
		}
	}
	var major, minor int
	if out, err := exec.Command("virsh", "--version").Output(); err != nil {
		t.Fatal(err)
	} else if _, err := fmt.Sscanf(string(out), "%d.%d", &major, &minor); err != nil {
		t.Fatalf("virsh --version: %q, %v", out, err)
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
		known := c.name != "passt-vhost-user" || major > 11 || major == 11 && minor >= 1
		if out, err := validate(string(golden)); (err == nil) != known {
			t.Errorf("%s: %v by the schema of libvirt %d.%d, want it valid: %v\n%s", c.name, err, major, minor, known, out)
		}
	}
	if out, err := validate(strings.Replace(element(t, cases[0].edit), "managed", "unmanaged", 1)); err == nil {
		t.Errorf("the schema accepts an attribute that libvirt does not have:\n%s", out)
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
