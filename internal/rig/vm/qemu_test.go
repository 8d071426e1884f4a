package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/records"
)

// refused says why QEMU cannot have a golden device here, where it cannot: a file or a card is missing. The words show
// that QEMU reads the argument as it is meant.
func refused(device string) string {
	switch device {
	case "rom-file":
		return `failed to find romfile "/usr/lib/ipxe/a,b=c ".rom"`
	case "sriov", "sriov-everything":
		return "0000:03:10.1: no such host device"
	case "passt-vhost-user": // TestQEMUChardev has a socket
		return "Failed to connect to '/run/passt,1.sock'"
	case "vhost-fd", "vhost-fds": // the descriptors are of /dev/null
		return "vhost-net requested but could not be initialized"
	case "vhost":
		if _, err := os.Stat("/dev/vhost-net"); err != nil {
			return "open vhost char device failed: No such file or directory" // QEMU 7.2 then aborts
		}
	}
	return ""
}

// TestQEMUGolden starts QEMU, without a guest, with each golden device of package qemu: once as its command line has
// it, and once as its QMP objects, which -netdev and -device take too. QEMU has to accept both.
func TestQEMUGolden(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		nstest.Skip(t, err.Error())
	}
	goldens, err := filepath.Glob("../../../domain/qemu/testdata/*.txt")
	if err != nil || len(goldens) == 0 {
		t.Fatalf("golden devices: %v, %v", goldens, err)
	}
	for _, golden := range goldens {
		name := strings.TrimSuffix(filepath.Base(golden), ".txt")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line, objects := readGolden(t, golden)
			for _, args := range [][]string{line, objects} {
				if args == nil {
					continue
				}
				said, err := startQEMU(t, args)
				want := refused(name)
				if want == "" && err != nil {
					t.Errorf("%q: %v: %s", args, err, said)
				}
				if want != "" && (err == nil || !strings.Contains(said, want)) {
					t.Errorf("%q: %v: %s, want an error with %q", args, err, said, want)
				}
			}
		})
	}
}

// TestQEMUBounds: QEMU accepts the golden device with the largest values, and refuses each value beyond. Validate has
// the same bounds.
func TestQEMUBounds(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		nstest.Skip(t, err.Error())
	}
	line, _ := readGolden(t, "../../../domain/qemu/testdata/extremes.txt")
	for _, c := range []struct{ from, to, want string }{
		{"", "", ""},
		{"bootindex=2147483647", "bootindex=2147483648", "bootindex"},
		{"acpi-index=16383", "acpi-index=16384", "acpi-index should be less"},
		{"addr=1f.7", "addr=00.0", "slot 0 function 0 not available"},
		{"addr=1f.7", "addr=00.1", "single function device"},
	} {
		device := slices.Clone(line)
		for i := range device {
			device[i] = strings.Replace(device[i], c.from, c.to, 1)
		}
		if c.from != "" && slices.Equal(device, line) {
			t.Fatalf("%q has no %s", line, c.from)
		}
		if said, err := startQEMU(t, device); (err != nil) != (c.want != "") || !strings.Contains(said, c.want) {
			t.Errorf("%s: %v: %s, want an error with %q", c.to, err, said, c.want)
		}
	}
}

// TestQEMUChardev: QEMU connects to passt's socket by the QMP object, and gives the connection up.
func TestQEMUChardev(t *testing.T) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		nstest.Skip(t, err.Error())
	}
	socket := filepath.Join(t.TempDir(), "passt")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	rec := records.Bridge()
	records.Passt(rec)
	rec.Passt.VhostUser = true
	nic, err := qemu.NewNIC(rec, qemu.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	for _, c := range []map[string]any{
		{"execute": "qmp_capabilities"}, {"execute": "chardev-add", "arguments": nic.Chardev},
		{"execute": "chardev-remove", "arguments": qemu.Object{"id": nic.Chardev["id"]}}, {"execute": "quit"},
	} {
		if err := json.NewEncoder(&commands).Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("qemu-system-x86_64", "-S", "-machine", "none", "-accel", "tcg", "-nodefaults", "-display", "none", "-qmp", "stdio")
	cmd.Stdin = strings.NewReader(commands.String())
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), `{"return": {}}`) != 4 || strings.Contains(string(out), `"error"`) {
		t.Errorf("%v: %s", err, out)
	}
}

// readGolden returns the device of a golden file as two command lines. The first one is nil for a device whose link is
// down.
func readGolden(t *testing.T, path string) (line, objects []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), " ")
		switch key {
		case "-chardev":
			line, objects = append(line, key, value), append(objects, key, value)
		case "-netdev", "-device":
			line = append(line, key, value)
		case "netdev_add", "device_add":
			objects = append(objects, map[string]string{"netdev_add": "-netdev", "device_add": "-device"}[key], value)
		}
	}
	return line, objects
}

// startQEMU starts QEMU with the device on a tap like the golden record's, and ends it at once by its monitor.
func startQEMU(t *testing.T, device []string) (said string, err error) {
	t.Helper()
	all := strings.Join(device, " ")
	queues := 1
	for _, n := range []int{2, 4, 256} {
		if strings.Contains(all, fmt.Sprintf("vectors=%d", 2*n+2)) || strings.Contains(all, fmt.Sprintf(`"vectors":%d`, 2*n+2)) {
			queues = n
		}
	}
	if strings.Contains(all, "virtio-net-device") {
		queues = 2
	}
	ns := nstest.New(t, "qemu")
	kind := "tuntap add eth0-tap mode tap vnet_hdr"
	if queues > 1 {
		kind += " multi_queue"
	}
	ns.IP(kind)
	// QEMU knows names of descriptors by QMP alone.
	args := []string{"-S", "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "stdio"}
	for _, a := range device {
		args = append(args, strings.ReplaceAll(strings.ReplaceAll(a, "eth0-0", "3"), "eth0-1", "4"))
	}
	if strings.Contains(all, "virtio-net-device") {
		args = append(args, "-machine", "microvm")
	} else {
		args = append([]string{"-machine", "q35", "-device", "pcie-root-port,id=rp1,chassis=1", "-device", "qemu-xhci,id=usb"}, args...)
	}
	var files []*os.File
	if strings.Contains(all, "fd=") || strings.Contains(all, "fds=") || strings.Contains(all, `"fd":`) || strings.Contains(all, `"fds":`) {
		err := netns.Do(ns.File, func() (err error) {
			files, err = tap.OpenQueues("eth0-tap", queues)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range files { // in the place of /dev/vhost-net
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, null)
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.Stdin, cmd.ExtraFiles = strings.NewReader("quit\n"), files
	err = netns.Do(ns.File, func() error {
		out, err := cmd.CombinedOutput()
		said = string(out)
		return err
	})
	return said, err
}
