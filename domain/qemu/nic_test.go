package qemu_test

import (
	"errors"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/records"
)

// macvtap, sriov, passt and slirp make the record one of that binding, and the options those that the record needs.
func macvtap(r *cache.Record, o *qemu.Options) { records.Macvtap(r); o.FDs = []string{"3"} }
func sriov(r *cache.Record, _ *qemu.Options)   { records.SRIOV(r) }
func passt(r *cache.Record, o *qemu.Options)   { records.Passt(r); o.Socket = "/run/passt,1.sock" }
func slirp(r *cache.Record, _ *qemu.Options)   { records.Slirp(r) }

// cases are the devices in testdata, with the names of their files.
var cases = records.Cases[qemu.Options]{
	"default":     func(*cache.Record, *qemu.Options) {},
	"queues":      func(r *cache.Record, _ *qemu.Options) { r.Queues = 4 },
	"queues-most": func(r *cache.Record, _ *qemu.Options) { r.Queues, r.MTU = syntax.MaxQueues, syntax.MaxMTU },
	"fd":          func(_ *cache.Record, o *qemu.Options) { o.FDs = []string{"3"} },
	"fds":         func(r *cache.Record, o *qemu.Options) { r.Queues, o.FDs = 2, []string{"eth0-0", "eth0-1"} },
	"vhost":       func(r *cache.Record, o *qemu.Options) { r.Device.Driver, o.Vhost = "vhost", true },
	"vhost-qemu":  func(r *cache.Record, o *qemu.Options) { r.Device.Driver, o.Vhost = "qemu", true },
	"vhost-fd": func(_ *cache.Record, o *qemu.Options) {
		o.Vhost, o.FDs, o.VhostFDs = true, []string{"3"}, []string{"4"}
	},
	"vhost-fds": func(r *cache.Record, o *qemu.Options) {
		r.Queues, o.Vhost, o.FDs, o.VhostFDs = 2, true, []string{"3", "4"}, []string{"5", "6"}
	},
	"vhost-e1000":         func(r *cache.Record, o *qemu.Options) { r.Device.Model, o.Vhost = "e1000", true },
	"virtio":              func(r *cache.Record, _ *qemu.Options) { r.Device.Model = "virtio" },
	"virtio-transitional": func(r *cache.Record, _ *qemu.Options) { r.Device.Model = "virtio-transitional" },
	"virtio-mmio":         func(r *cache.Record, _ *qemu.Options) { r.Device.Model, r.Queues = "virtio-net-device", 2 },
	"e1000":               func(r *cache.Record, _ *qemu.Options) { r.Device.Model = "e1000" },
	"e1000e":              func(r *cache.Record, _ *qemu.Options) { r.Device.Model = "e1000e" },
	"rtl8139":             func(r *cache.Record, _ *qemu.Options) { r.Device.Model = "rtl8139" },
	"usb-net":             func(r *cache.Record, o *qemu.Options) { r.Device.Model, o.Bus = "usb-net", "usb.0" },
	"boot":                func(r *cache.Record, _ *qemu.Options) { r.Device.BootOrder = 1 },
	"boot-without-rom":    func(r *cache.Record, _ *qemu.Options) { r.Device.BootOrder, r.Device.ROM = 2, "off" },
	"rom-on":              func(r *cache.Record, _ *qemu.Options) { r.Device.ROM = "on" },
	"rom-file":            func(r *cache.Record, _ *qemu.Options) { r.Device.ROM = "/usr/lib/ipxe/a,b=c \".rom" },
	"placed":              func(r *cache.Record, _ *qemu.Options) { r.Device.PCIAddress, r.Device.ACPIIndex = "0000:00:1d.5", 3 },
	"placed-on-bus":       func(r *cache.Record, o *qemu.Options) { r.Device.PCIAddress, o.Bus = "0000:01:00.0", "rp1" },
	"alias":               func(r *cache.Record, _ *qemu.Options) { r.Device.Alias = "ua-blue" },
	"id":                  func(r *cache.Record, o *qemu.Options) { r.Device.Alias, o.ID = "ua-blue", "nic.1" },
	"link-down":           func(r *cache.Record, _ *qemu.Options) { r.Device.LinkState = "down" },
	"link-up":             func(r *cache.Record, _ *qemu.Options) { r.Device.LinkState = "up" },
	"extremes": func(r *cache.Record, _ *qemu.Options) { // what Validate takes at most; TestQEMUBounds tries more
		r.Device = cache.Device{BootOrder: math.MaxInt32, ROM: "off", PCIAddress: "0000:00:1f.7", ACPIIndex: 16383, Alias: strings.Repeat("a", 64)}
		r.MTU = syntax.MinMTU
	},
	"macvtap":          macvtap,
	"macvtap-queues":   func(r *cache.Record, o *qemu.Options) { macvtap(r, o); r.Queues, o.FDs = 2, []string{"3", "4"} },
	"passt":            passt,
	"passt-e1000e":     func(r *cache.Record, o *qemu.Options) { passt(r, o); r.Device.Model = "e1000e" },
	"passt-vhost-user": func(r *cache.Record, o *qemu.Options) { passt(r, o); r.Passt.VhostUser = true },
	"slirp":            slirp,
	"slirp-6": func(r *cache.Record, o *qemu.Options) {
		slirp(r, o)
		r.Slirp, r.Device.Model = &cache.Slirp{IPv6: netip.MustParsePrefix("fd10:0:2::/64")}, "e1000e"
	},
	"slirp-forwards": func(r *cache.Record, o *qemu.Options) {
		slirp(r, o)
		r.DNS = &cache.DNS{Search: []string{"a.example.", ".", "b.example", "A.example"}}
		r.Slirp.Forwards = []cache.Forward{{Protocol: "tcp", First: 80, Last: 80, Guest: 8080}, {Protocol: "udp", First: 65534, Last: 65535, Guest: 1}}
	},
	"sriov": sriov,
	"sriov-everything": func(r *cache.Record, o *qemu.Options) {
		sriov(r, o)
		o.Bus = "rp1"
		r.Device = cache.Device{BootOrder: 1, ROM: "/rom", PCIAddress: "0000:01:00.0", ACPIIndex: 1, Alias: "ua-a"}
	},
}

// text is what testdata has: the command line, or why there is none, and the QMP commands.
func text(t *testing.T, nic *qemu.NIC) string {
	t.Helper()
	var b strings.Builder
	args, err := nic.Args()
	if err != nil {
		b.WriteString(err.Error() + "\n")
	}
	for i := 0; i < len(args); i += 2 {
		b.WriteString(args[i] + " " + args[i+1] + "\n")
	}
	for _, c := range []struct {
		name string
		args qemu.Object
	}{{"chardev-add", nic.Chardev}, {"netdev_add", nic.Netdev}, {"device_add", nic.Device}, {"set_link", nic.SetLink}} {
		if c.args == nil {
			continue
		}
		b.WriteString(c.name + " " + records.JSON(t, c.args) + "\n")
	}
	return b.String()
}

func TestNIC(t *testing.T) {
	records.Golden(t, ".txt", cases, func(t *testing.T, r *cache.Record, o qemu.Options) string {
		nic, err := qemu.NewNIC(r, o)
		if err != nil {
			t.Fatal(err)
		}
		return text(t, nic)
	})
}

// queue is an open queue of a tap.
type queue struct{ closed bool }

func (q *queue) Close() error { q.closed = true; return nil }

// TestArgs: the taps of all records have numbers in order, records without a tap have none, and an error leaves no tap
// open.
func TestArgs(t *testing.T) {
	tap, queues, card, sockets, down := records.Bridge(), records.Bridge(), records.Bridge(), records.Bridge(), records.Bridge()
	queues.Name, queues.Queues = "eth1", 2
	card.Name, sockets.Name, down.Name = "eth2", "eth3", "eth4"
	sriov(card, &qemu.Options{})
	passt(sockets, &qemu.Options{})
	down.Device.LinkState = "down"
	refused := errors.New("refused")
	for _, c := range []struct {
		name    string
		records []*cache.Record
		first   int
		fds     []string // in the arguments
		err     string
	}{
		{"none", nil, 3, nil, ""},
		{"a tap", []*cache.Record{tap}, 3, []string{"fd=3"}, ""},
		{"after another file", []*cache.Record{tap}, 4, []string{"fd=4"}, ""},
		{"queues", []*cache.Record{queues, card, tap}, 3, []string{"fds=3:4", "fd=5"}, ""},
		{"passt", []*cache.Record{tap, sockets}, 3, nil, "options.socket"},
		{"a link that is down", []*cache.Record{queues, down}, 3, nil, "device.linkState"},
		{"a tap that is not there", []*cache.Record{queues, {Name: "gone", Tap: "gone-tap"}}, 3, nil, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var records []cache.Record
			for _, r := range c.records {
				records = append(records, *r)
			}
			var opened []*queue
			args, taps, err := qemu.Args(records, c.first, func(r cache.Record) (files []*queue, err error) {
				if r.Name == "gone" {
					return nil, refused
				}
				for range r.Queues {
					files = append(files, &queue{})
				}
				opened = append(opened, files...)
				return files, nil
			})
			open := !slices.ContainsFunc(opened, func(q *queue) bool { return q.closed })
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || open || args != nil || taps != nil {
					t.Errorf("got %q, %v, %v, taps open %t; want %q", args, taps, err, open, c.err)
				}
				return
			}
			fds := regexp.MustCompile("fds?=[0-9:]+").FindAllString(strings.Join(args, " "), -1)
			if err != nil || !open || !slices.Equal(fds, c.fds) || !slices.Equal(taps, opened) || len(args) != 4*len(records) {
				t.Errorf("got %q, %v, %v, taps open %t; want %q", args, taps, err, open, c.fds)
			}
		})
	}
}

// TestLinkDown: the command line cannot take a link down, so Args refuses until the caller has taken SetLink.
func TestLinkDown(t *testing.T) {
	rec := records.Bridge()
	rec.Device.LinkState = "down"
	nic, err := qemu.NewNIC(rec, qemu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var field *cache.FieldError
	if args, err := nic.Args(); !errors.As(err, &field) || field.Field != "device.linkState" || !strings.Contains(err.Error(), "set_link") {
		t.Errorf("got %q, %v, want a *cache.FieldError that names set_link", args, err)
	}
	nic.SetLink = nil
	if args, err := nic.Args(); err != nil || len(args) != 4 {
		t.Errorf("got %q, %v, want the command line", args, err)
	}
}

// TestPlug: the commands come in order, and a failure takes back what came before it.
func TestPlug(t *testing.T) {
	rec := records.Bridge()
	rec.Device.LinkState = "down"
	tap, err := qemu.NewNIC(rec, qemu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	function := &qemu.NIC{Device: qemu.Object{"driver": "vfio-pci", "id": "eth0"}}
	sockets := records.Bridge()
	records.Passt(sockets)
	sockets.Passt.VhostUser = true
	shared, err := qemu.NewNIC(sockets, qemu.Options{Socket: "/run/passt"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		nic       *qemu.NIC
		fail      string // the commands that do
		sent, err string
	}{
		{tap, "", "netdev_add device_add set_link", ""},
		{tap, "netdev_add", "netdev_add", "netdev_add: no"},
		{tap, "device_add", "netdev_add device_add netdev_del", "device_add: no"},
		{tap, "device_add netdev_del", "netdev_add device_add netdev_del", "device_add: no\nnetdev_del, which leaves the tap open: no"},
		{tap, "set_link", "netdev_add device_add set_link", "set_link of the device, which is plugged and whose link is up: no"},
		{shared, "", "chardev-add netdev_add device_add", ""},
		{shared, "chardev-add", "chardev-add", "chardev-add: no"},
		{shared, "netdev_add", "chardev-add netdev_add chardev-remove", "netdev_add: no"},
		{shared, "device_add", "chardev-add netdev_add device_add netdev_del", "device_add: no"},
		{function, "", "device_add", ""},
		{function, "device_add", "device_add", "device_add: no"},
	} {
		var sent []string
		err := c.nic.Plug(func(command string, arguments qemu.Object) error {
			sent = append(sent, command)
			if command == "netdev_del" && arguments["id"] != "eth0-netdev" {
				t.Errorf("netdev_del of %v", arguments)
			}
			if slices.Contains(strings.Fields(c.fail), command) {
				return errors.New("no")
			}
			return nil
		})
		if got := strings.Join(sent, " "); got != c.sent || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("with %q that fail: sent %s, %v, want %s, %q", c.fail, got, err, c.sent, c.err)
		}
	}
}

// TestUnplug: the tap's backend goes after the device, and never before. A device_del that the guest ignores is sent
// again.
func TestUnplug(t *testing.T) {
	tap, err := qemu.NewNIC(records.Bridge(), qemu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	function := &qemu.NIC{Device: qemu.Object{"driver": "vfio-pci", "id": "eth0"}}
	sockets := records.Bridge()
	records.Passt(sockets)
	sockets.Passt.VhostUser = true
	shared, err := qemu.NewNIC(sockets, qemu.Options{Socket: "/run/passt"})
	if err != nil {
		t.Fatal(err)
	}
	given := errors.New("given up")
	for _, c := range []struct {
		name      string
		nic       *qemu.NIC
		fail      string // the commands that fail, by their place
		answers   string // of deleted: yes, no, error
		sent, err string
	}{
		{"at once", tap, "", "yes", "device_del netdev_del", ""},
		{"shared memory: the netdev takes the chardev along", shared, "", "yes", "device_del netdev_del", ""},
		{"a function", function, "", "yes", "device_del", ""},
		{"ignored twice", tap, "", "no no yes", "device_del device_del device_del netdev_del", ""},
		{"ignored for ever", tap, "", "no error", "device_del device_del", "wait for the guest to give device eth0 up: given up"},
		{"QEMU does not take it again", tap, "2 device_del", "no no yes", "device_del device_del qom-list device_del netdev_del", ""},
		{"QEMU is at an earlier one", tap, "1 device_del", "yes", "device_del qom-list netdev_del", ""},
		{"no hot plug", tap, "1 device_del", "no", "device_del qom-list", "device_del: no"},
		{"no hot plug, and no time", tap, "1 device_del", "error", "device_del qom-list", "wait for the guest to give device eth0 up: given up\ndevice_del: no"},
		{"the device is gone", tap, "1 device_del, 2 qom-list", "", "device_del qom-list qom-list netdev_del", ""},
		{"the event was missed", tap, "2 device_del, 3 qom-list", "no", "device_del device_del qom-list qom-list netdev_del", ""},
		{"QEMU does not answer", function, "1 device_del, 2 qom-list, 3 qom-list", "error", "device_del qom-list qom-list", "wait for the guest to give device eth0 up: given up\ndevice_del: no"},
		{"the backend stays", tap, "2 netdev_del", "yes", "device_del netdev_del", "netdev_del, without which the tap stays open: no"},
	} {
		var sent []string
		answers := strings.Fields(c.answers)
		err := c.nic.Unplug(func(command string, arguments qemu.Object) error {
			sent = append(sent, command)
			if id := arguments["id"]; command == "device_del" && id != "eth0" || command == "netdev_del" && id != "eth0-netdev" {
				t.Errorf("%s: %s of %v", c.name, command, arguments)
			}
			if slices.Contains(strings.Split(c.fail, ", "), strconv.Itoa(len(sent))+" "+command) {
				return errors.New("no")
			}
			return nil
		}, func() (bool, error) {
			if len(answers) == 0 {
				return false, errors.New("deleted is called too often")
			}
			answer := answers[0]
			answers = answers[1:]
			if answer == "error" {
				return false, given
			}
			return answer == "yes", nil
		})
		if got := strings.Join(sent, " "); got != c.sent || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err || len(answers) > 0 {
			t.Errorf("%s: sent %s, %v, and %v were not asked for; want %s, %q", c.name, got, err, answers, c.sent, c.err)
		}
		if strings.Contains(c.answers, "error") && !errors.Is(err, given) {
			t.Errorf("%s: %v does not wrap the error of deleted", c.name, err)
		}
	}
	if down, up := tap.Link(false), tap.Link(true); down["name"] != "eth0" || down["up"] != false || up["up"] != true {
		t.Errorf("set_link %v and %v", down, up)
	}
}
