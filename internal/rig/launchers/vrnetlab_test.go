package launchers

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestVrnetlab runs the method that docs/how-to/launchers.md puts in the place of vrnetlab's (common/vrnetlab.py at
// 9b1495f), in a namespace with two NICs. A router on the tap has a MAC and addresses of its own, and its LLDP passes.
func TestVrnetlab(t *testing.T) {
	nstest.NeedRoot(t, "vrnetlab's containers are root's")
	nstest.Need(t, "python3")
	n := nstest.NewNetwork(t)
	n.Pod.IP("link add eth1 type veth peer name lan1 netns " + n.World.Name)
	n.Pod.IP("link set eth1 up")
	n.World.IP("link set lan1 up")
	n.World.IP("addr add 192.0.2.1/24 dev lan1")

	page, err := os.ReadFile("../../../docs/how-to/launchers.md")
	_, method, ok := strings.Cut(string(page), "```python\n")
	method, _, end := strings.Cut(method, "```\n")
	if err != nil || !ok || !end {
		t.Fatal("the page has no method: ", err)
	}
	script := filepath.Join(t.TempDir(), "ifup")
	text := "import json, os, re, subprocess\nclass VM:\n    data_intf_prefix = 'eth'\n" +
		strings.ReplaceAll(method, "/etc/tc-tap-ifup", script) + "\nVM().create_tc_tap_ifup()\n"
	path := "PATH=" + filepath.Dir(nstest.Program(t, "examples/guestwire-agent")) + ":" + os.Getenv("PATH")
	n.Pod.ExecWithSys("env", path, "python3", "-c", text)
	if out, err := exec.Command(script, "tap1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if links := n.Pod.Exec("ip", "-o", "link"); strings.Contains(links, "tap0") {
		t.Errorf("eth0 is the container's own:\n%s", links)
	}
	g := boot(t, n.Pod, "tap1", "0c:00:a1:7e:11:01", "192.0.2.2/24")
	n.World.Listen("peer", "192.0.2.1:8000")
	c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort("192.0.2.1:8000"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	lldp := []byte("\x01\x80\xc2\x00\x00\x0e\x0c\x00\xa1\x7e\x11\x01\x88\xcc" + strings.Repeat("\x00", 46))
	seen := n.World.Sniff(t)
	seen.Until(func(s nstest.Sniffed) bool { return strings.HasPrefix(string(s.Frame), string(lldp[:14])) }, func() {
		if err := g.WriteFrame(lldp); err != nil {
			t.Fatal(err)
		}
	})
}
