package examples_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// decode decodes what a program printed, strictly: a null list is an error.
func decode(t *testing.T, text string, into any) {
	t.Helper()
	if strings.Contains(text, "null") {
		t.Errorf("null in\n%s", text)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

// stdout is what the program printed on standard output, and its exit status.
func stdout(t *testing.T, program string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestTeardownOfState: without -netns the journal with this State leads to the namespace, also when it is gone. Another
// NIC or State is none of it.
func TestTeardownOfState(t *testing.T) {
	nstest.Need(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	dir := filepath.Join(nstest.Dir(t), "node")
	n, other := nstest.NewNetwork(t), nstest.NewNetwork(t)
	before := n.Pod.Dump()
	for _, n := range []nstest.Network{n, other} {
		if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
			t.Fatal(out)
		}
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
		left   int
	}{
		{[]string{"-state", n.State}, 2, "-netns is missing", 2},
		{[]string{"-nic", "eth0"}, 2, "-netns is missing", 2},
		{[]string{"-state", n.State, "-nic", "eth0", "-force"}, 2, "without -force", 2},
		{[]string{"-state", n.State + "x", "-nic", "eth0"}, 0, "", 2},
		{[]string{"-state", filepath.Base(n.State), "-nic", "eth0"}, 2, "want an absolute path", 2},
		{[]string{"-state", n.State, "-nic", "eth1"}, 0, "", 2},
		{[]string{"-state", n.State, "-nic", "eth0"}, 0, "", 1},
		{[]string{"-state", n.State, "-nic", "eth0"}, 0, "", 1},
		{[]string{"-state", other.State, "-nic", "eth0"}, 0, "", 0},
	} {
		if c.left == 0 {
			other.Pod.End()
			if out, status := run(t, agent, "status", "-state", other.State, "-dir", dir); status != 1 || !strings.Contains(out, "guestwire-agent forget") {
				t.Errorf("status of a namespace that is gone: status %d, %s", status, out)
			}
		}
		out, status := run(t, agent, append([]string{"teardown", "-dir", dir}, c.args...)...)
		list, _ := stdout(t, agent, "list", "-json", "-dir", dir)
		if status != c.status || !strings.Contains(out, c.says) || strings.Count(list, `"nic"`) != c.left {
			t.Errorf("teardown %s: status %d, %q; left is %s", c.args, status, out, list)
		}
	}
	if after := n.Pod.Settled(); after != before {
		t.Errorf("the namespace is\n%s\nand was\n%s", after, before)
	}
}

// TestSeeByState: status and drops find the namespace by the record's directory, or by a link to it, as a pod has one.
func TestSeeByState(t *testing.T) {
	nstest.Need(t)
	agent, dir := nstest.Program(t, "examples/guestwire-agent"), filepath.Join(nstest.Dir(t), "node")
	n := nstest.NewNetwork(t)
	n.Pod.IP("link add net1 type veth peer name other")
	n.Pod.IP("link set net1 up")
	for _, nic := range []string{"eth0", "net1"} {
		if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", nic, "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
			t.Fatal(out)
		}
	}
	link := filepath.Join(nstest.Dir(t), "pod")
	if err := os.Symlink(n.State, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"status", 2, "or -state"},
		{"drops", 2, "or -own for the agent's own, or -state with the directory of the record\n"},
		{"status -state " + link, 2, "-nic is missing: name one of the NICs that are wired with -state " + n.State + ", such as "},
		{"status -state " + link + " -nic net1", 0, "NIC        net1, redirect\n"},
		{"status -nic eth0 -state " + n.State, 0, "NIC        eth0, redirect\n"},
		{"drops -nic eth1 -state " + n.State, 3, "no NIC eth1 with this directory (guestwire-agent list"},
		{"status -nic eth0 -state " + n.State + "x", 3, "not wired"},
		{"status -nic eth0 -state " + filepath.Base(n.State), 2, "want an absolute path"},
		{"status -nic eth0 -own -state " + n.State, 2, "name one of them"},
		{"drops -netns " + n.Pod.Path() + " -state " + n.State, 2, "name one of them"},
		{"teardown -nic net1 -state " + link, 0, ""},
		{"status -state " + link, 0, "NIC        eth0, redirect\n"},
	} {
		if out, status := run(t, agent, append(strings.Fields(c.args), "-dir", dir)...); status != c.status || !strings.Contains(out, c.says) {
			t.Errorf("%s: status %d, want %d, and no %q in\n%s", c.args, status, c.status, c.says, out)
		}
	}
	// Journal and tables of a first setup are there before the record is.
	if err := os.Remove(n.State + "/eth0.json"); err != nil {
		t.Fatal(err)
	}
	if out, status := run(t, agent, "drops", "-state", link, "-dir", dir); status != 3 || !strings.Contains(out, "NIC eth0: not wired yet, or no longer: there is a journal, and no "+n.State+"/eth0.json: ") || strings.Contains(out, "follows") {
		t.Errorf("drops without a record: status %d, %s", status, out)
	}
	if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
		t.Fatal(out)
	}
	follow := exec.CommandContext(t.Context(), agent, "drops", "-state", link, "-dir", dir)
	var said nstest.Output
	follow.Stdout, follow.Stderr = &said, &said
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		if !strings.Contains(said.String(), "follows what is dropped") {
			return fmt.Errorf("guestwire-agent drops says %s", said.String())
		}
		return nil
	})
	if out, status := run(t, agent, "flows", "-state", link, "-dir", dir); status != 1 || !strings.Contains(out, "under the redirect binding nobody tracks") {
		t.Errorf("flows of redirect: status %d, %s", status, out)
	}
	if out, status := run(t, agent, "teardown", "-state", link, "-nic", "eth0", "-dir", dir); status != 0 {
		t.Fatal(out)
	}
	if err := follow.Wait(); follow.ProcessState.ExitCode() != 3 || !strings.Contains(said.String(), n.State+"/eth0.json is gone") {
		t.Errorf("drops after the teardown: %v, %s", err, said.String())
	}
}

// TestSee asks the agent what there is, in text, in JSON and as metrics: of a whole wiring, of a damaged one, and of a
// namespace that is gone.
func TestSee(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	n.State += "/vm1"
	agent := nstest.Program(t, "examples/guestwire-agent")
	dir := filepath.Join(nstest.Dir(t), "node")
	nic := []string{"-netns", n.Pod.Path(), "-nic", "eth0", "-dir", dir}
	call := func(want int, verb string, more ...string) string {
		t.Helper()
		out, status := stdout(t, agent, append(append([]string{verb}, nic...), more...)...)
		if status != want {
			t.Errorf("agent %s %s: status %d, want %d:\n%s", verb, strings.Join(more, " "), status, want, out)
		}
		return out
	}
	// A mistyped directory is no empty node, and no call but setup makes it.
	for _, verb := range []string{"list", "forget"} {
		if out, status := run(t, agent, verb, "-dir", dir); status != 1 || !strings.Contains(out, dir) || !strings.Contains(out, "guestwire-agent -dir") {
			t.Errorf("%s without the directory: status %d, %q", verb, status, out)
		}
	}
	for _, verb := range []string{"check", "status", "deactivate", "activate -gone"} {
		args := append(strings.Fields(verb), nic...)
		if out, status := run(t, agent, args...); status != 3 || !strings.Contains(out, " eth0: not wired") || !strings.Contains(out, dir) {
			t.Errorf("%s without the directory: status %d, %q", verb, status, out)
		}
	}
	if out, status := run(t, agent, append([]string{"drops"}, nic[:4]...)...); status != 3 || strings.Contains(out, "follows what is dropped") {
		t.Errorf("drops of a NIC that is not wired: status %d, %q", status, out)
	}
	if out, status := run(t, agent, append([]string{"plan", "-uid", "0", "-binding", "bridge", "-state", n.State}, nic...)...); status != 0 || !strings.Contains(out, "eth0-br") {
		t.Errorf("plan without the directory: status %d, %q", status, out)
	}
	if out, status := run(t, agent, append([]string{"teardown"}, nic...)...); status != 0 || !strings.Contains(out, "nothing is taken down") || !strings.Contains(out, dir) {
		t.Errorf("teardown without the directory: status %d, %q", status, out)
	}
	if out, status := run(t, agent, append([]string{"teardown", "-force"}, nic...)...); status != 3 || !strings.Contains(out, "not wired") {
		t.Errorf("teardown -force without the directory: status %d, %q", status, out)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v, want none", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, status := run(t, agent, "teardown", "-state", n.State, "-nic", "eth0", "-dir", dir); status != 0 || !strings.Contains(out, "nothing is taken down (guestwire-agent list ") {
		t.Errorf("teardown of a state directory of no NIC: status %d, %q", status, out)
	}
	if out, status := stdout(t, agent, "list", "-json", "-dir", dir); status != 0 || out != "[]\n" {
		t.Errorf("list of nothing: status %d, %q", status, out)
	}
	var record struct{ Name, Binding, Namespace string }
	decode(t, call(0, "setup", "-uid", "0", "-binding", "redirect", "-state", n.State, "-json"), &record)
	if record.Name != "eth0" || record.Binding != "redirect" || record.Namespace == "" {
		t.Errorf("setup -json: %+v", record)
	}

	type wiring struct {
		NIC, Namespace, State, Binding, Version string
		FoundAt                                 []string
		Owner                                   struct{ UID uint32 }
		Pod                                     struct{ UID, Namespace, Name string }
		Since                                   time.Time
	}
	var wirings []wiring
	list := func() wiring {
		t.Helper()
		out, status := stdout(t, agent, "list", "-json", "-dir", dir)
		decode(t, out, &wirings)
		if status != 0 || len(wirings) != 1 {
			t.Fatalf("list: status %d\n%s", status, out)
		}
		return wirings[0]
	}
	w := list()
	if w.NIC != "eth0" || w.Namespace != record.Namespace || w.State != n.State || w.Binding != "redirect" || w.Version == "" ||
		len(w.FoundAt) == 0 || w.FoundAt[0] != n.Pod.Path() || time.Since(w.Since) > time.Hour {
		t.Errorf("list: %+v", w)
	}
	if out, _ := stdout(t, agent, "list", "-dir", dir); !strings.Contains(out, n.Pod.Path()) || !strings.HasPrefix(out, "NIC ") {
		t.Errorf("list:\n%s", out)
	}
	pods, here := filepath.Join(filepath.Dir(n.State), "pods"), "../"+filepath.Base(n.State)
	if err := errors.Join(os.Mkdir(pods, 0o755), os.Symlink(here, pods+"/7d5a"), os.Symlink(here, pods+"/vms_vm1"), os.Symlink("../other", pods+"/vms_vm2")); err != nil {
		t.Fatal(err)
	}
	if pod := list().Pod; pod.UID != "7d5a" || pod.Namespace != "vms" || pod.Name != "vm1" {
		t.Errorf("list: pod %+v", pod)
	}
	for _, c := range []struct {
		state  string
		status int
		text   string
	}{
		{pods + "/vms_vm1", 0, "NIC POD NAMESPACE BINDING ATTACHED OWNER SINCE VERSION STATE\neth0 vms/vm1 " + n.Pod.Path() + " redirect"},
		{pods + "/vms_vm2", 3, "no NIC with this directory (guestwire-agent list -dir " + dir},
		{"", 2, "want an absolute path"},
	} {
		if out, status := run(t, agent, "list", "-state", c.state, "-dir", dir); status != c.status || !matches(c.text, out) {
			t.Errorf("list -state %q: status %d, want %d and %q:\n%s", c.state, status, c.status, c.text, out)
		}
	}

	var preview struct {
		Steps   []struct{ Kind, Link, Command string }
		Refused []json.RawMessage
	}
	decode(t, call(0, "plan", "-uid", "0", "-binding", "auto", "-json"), &preview)
	if len(preview.Steps) != 0 || preview.Refused == nil {
		t.Errorf("plan -json of a whole wiring: %+v", preview)
	}
	var drift struct {
		NIC     string
		Differs []struct{ Kind, Link, Text string }
		Repair  []struct{ Kind, Link, Command string }
	}
	decode(t, call(0, "check", "-json"), &drift)
	if drift.NIC != "eth0" || drift.Differs == nil || drift.Repair == nil || len(drift.Differs) > 0 {
		t.Errorf("check -json of a whole wiring: %+v", drift)
	}

	n.Pod.IP("link set eth0-tap down")
	decode(t, call(4, "check", "-json"), &drift)
	if len(drift.Differs) != 1 || drift.Differs[0].Kind != "up" || drift.Differs[0].Link != "eth0-tap" || len(drift.Repair) != 1 || drift.Repair[0].Kind != "link-set" {
		t.Errorf("check -json of a damaged wiring: %+v", drift)
	}
	if out := call(4, "status"); !strings.Contains(out, "eth0-tap is down") || !strings.Contains(out, n.Pod.Path()) {
		t.Errorf("status:\n%s", out)
	}
	n.Pod.IP("link set eth0-tap up")

	// A frame with a foreign source.
	var guest *os.File
	err := netns.Do(n.Pod.File, func() (err error) {
		guest, err = tap.Open("eth0-tap")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	foreign := append([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 0x66, 0x08, 0x06}, make([]byte, 46)...)
	nstest.Eventually(t, func() error {
		_, err := guest.Write(foreign)
		return err
	})
	var report struct {
		wiring
		Drift     json.RawMessage
		FromGuest struct{ Packets, Bytes uint64 }
		ToGuest   *struct{ Packets, Bytes uint64 }
		Drops     []struct {
			Reason         string
			Packets, Bytes uint64
		}
	}
	spoofed := func() uint64 {
		report.Drops = nil
		decode(t, call(8, "status", "-json"), &report)
		for _, d := range report.Drops {
			if d.Reason == "mac-spoof" {
				return d.Packets
			}
		}
		t.Fatalf("status -json has no mac-spoof: %+v", report)
		return 0
	}
	if got := spoofed(); got != 1 || report.NIC != "eth0" || len(report.Drift) > 0 {
		t.Errorf("status -json: %d packets of mac-spoof, want 1: %+v", got, report)
	}
	if report.FromGuest.Packets != 1 || report.FromGuest.Bytes != 60 || report.ToGuest == nil {
		t.Errorf("status -json: want 1 packet of 60 octets from the guest: %+v", report)
	}
	if out := call(8, "status"); !regexp.MustCompile(`(?s)tap +eth0-tap, 1 queue\nVMM +process \d+ \(examples.test\) has eth0-tap open, started .*\nresponder +none, .*traffic +from the guest: 1 packet, 60 octets\ntraffic +to the guest: .*dropped +1 packet: mac-spoof, .*start the VM with the record's MAC`).MatchString(out) {
		t.Errorf("status:\n%s", out)
	}
	exporter := nstest.Program(t, "examples/guestwire-exporter")
	out, status := stdout(t, exporter, "-dir", dir)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(out))
	sample := fmt.Sprintf(`guestwire_dropped_packets_total{expected="false",netns="%s",nic="eth0",reason="mac-spoof",state="%s"} 1`, w.Namespace, n.State)
	traffic := fmt.Sprintf(`guestwire_traffic_bytes_total{direction="from-guest",netns="%s",nic="eth0",state="%s"} 60`, w.Namespace, n.State)
	if err != nil || status != 0 || !strings.Contains(out, sample) || !strings.Contains(out, traffic) || families["guestwire_differences"] == nil || families["guestwire_wired_info"] == nil {
		t.Errorf("guestwire-exporter: status %d, %v, want %s and %s in\n%s", status, err, sample, traffic, out)
	}

	call(2, "teardown", "-state", n.State+"-typo")
	guest.Close() // its socket would keep the namespace
	n.Pod.End()
	if w := list(); w.FoundAt == nil || len(w.FoundAt) > 0 {
		t.Errorf("list of a namespace that is gone: %+v", w)
	}
	if out, status := stdout(t, exporter, "-dir", dir); status != 0 || !strings.Contains(out, "guestwire_namespace_found{netns=\""+w.Namespace+"\",nic=\"eth0\",state=\""+n.State+"\"} 0") {
		t.Errorf("exporter, of a namespace that is gone: status %d\n%s", status, out)
	}
	out, status = run(t, agent, "forget", "-dir", dir)
	if status != 0 || !strings.Contains(out, n.State+"/eth0.json") || !strings.Contains(out, "eth0.journal") {
		t.Errorf("forget: status %d, %s", status, out)
	}
	if out, _ := stdout(t, agent, "list", "-json", "-dir", dir); out != "[]\n" {
		t.Errorf("list after forget: %s", out)
	}
}

// TestPin: guestwire-agent pin takes lists of addresses and ports, pins what it can, and names what it leaves out and
// what is wrong.
func TestPin(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	file := filepath.Join(t.TempDir(), "vm1.json")
	if err := os.WriteFile(file, []byte(`{"binding": {"masquerade": {}}, "owner": {"root": true}, "egress": ["refuse private", "refuse all"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	nic := []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
	call := func(want int, says string, args ...string) {
		t.Helper()
		out, status := run(t, agent, append([]string{args[0]}, append(nic, args[1:]...)...)...)
		if status != want || !strings.Contains(out, says) {
			t.Errorf("agent %s: status %d, want %d and %q:\n%s", strings.Join(args, " "), status, want, says, out)
		}
	}
	const hosts = "198.51.100.7,2001:db8:9::7"
	call(3, "not wired", "pin", "-addresses", hosts, "-ports", "443", "-life", "5m")
	call(0, "", "setup", "-config", file, "-state", n.State)
	defer call(0, "", "teardown")
	call(2, "addresses: none", "pin", "-ports", "443", "-life", "5m")
	call(2, "ports: none", "pin", "-addresses", hosts, "-life", "5m")
	call(2, "life: 0s, want a time of 1s to 168h", "pin", "-addresses", hosts, "-ports", "443")
	call(2, `-addresses: ParseAddr("example.com")`, "pin", "-addresses", "example.com", "-ports", "443", "-life", "5m")
	call(2, `want 1 to 65535, as in 80, 8000-8100/udp`, "pin", "-addresses", hosts, "-ports", "443,udp", "-life", "5m")
	call(1, "not pinned: 10.1.2.3: refused by", "pin", "-addresses", "10.1.2.3,"+hosts, "-ports", "443,53/udp,8000-8001", "-life", "5m")
	call(2, "name: \"a\\\"b\", want at most 253", "pin", "-addresses", hosts, "-ports", "9", "-life", "5m", "-name", `a"b`)
	call(0, "", "pin", "-addresses", "198.51.100.9", "-ports", "443", "-life", "1h", "-name", "registry.example")
	if list := n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"); !strings.Contains(list, "198.51.100.9 . tcp . 443 timeout 1h expires ") || !strings.Contains(list, `comment "registry.example"`) {
		t.Errorf("no pin with a name in\n%s", list)
	}
	for set, host := range map[string]string{"pins-4": "198.51.100.7", "pins-6": "2001:db8:9::7"} {
		list := n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", set)
		for _, port := range []string{"tcp . 443", "udp . 53", "tcp . 8000", "tcp . 8001"} {
			if !strings.Contains(list, host+" . "+port+" timeout 5m") || strings.Count(list, "timeout 5m") != 4 {
				t.Errorf("want four ports, also %s, in\n%s", port, list)
			}
		}
	}
}

// TestFlows: guestwire-agent flows prints what is open, and what begins and ends, as lines for people and as JSON.
func TestFlows(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	file := filepath.Join(t.TempDir(), "vm1.json")
	if err := os.WriteFile(file, []byte(`{"binding": {"masquerade": {}}, "owner": {"root": true}, "flows": true, "egress": ["allow 198.51.100.9 9001/udp", "refuse all"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-config", file, "-state", n.State); status != 0 {
		t.Fatal(out)
	}
	nstest.Run(t, agent, "pin", "-netns", n.Pod.Path(), "-nic", "eth0", "-addresses", "198.51.100.9", "-ports", "9002/udp", "-life", "1h", "-name", "registry.example")
	r := nstest.Record(t, n.State, "eth0")
	guest := n.Guest(t, r)
	guest.IP("link set eth0 up")
	guest.IP("addr add " + r.IPv4.Address.String() + " dev eth0")
	guest.IP("route add default via " + r.IPv4.Gateway().String())
	n.World.Serve("world", "udp", netip.AddrPortFrom(nstest.Beyond4, 9001), netip.AddrPortFrom(nstest.Beyond4, 9002))
	var lines, text nstest.Output
	var waits []func() error
	for out, more := range map[*nstest.Output][]string{&lines: {"-json"}, &text: nil} {
		follow := exec.CommandContext(t.Context(), agent, append([]string{"flows", "-state", n.State, "-follow"}, more...)...)
		follow.Stdout, follow.Stderr = out, out
		if err := follow.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- follow.Wait() }()
		t.Cleanup(func() { // the test's context has ended the process by now, if the teardown has not
			if err := <-ended; follow.ProcessState.ExitCode() != 3 || !strings.Contains(out.String(), "eth0.json is gone") {
				t.Errorf("flows after the teardown: %v, %s", err, out)
			}
		})
		waits = append(waits, func() error {
			if !strings.Contains(out.String(), "eth0.json is gone") {
				return fmt.Errorf("flows goes on: %s", out)
			}
			return nil
		})
		nstest.Eventually(t, func() error {
			if !strings.Contains(out.String(), "follows the guest's flows\n") {
				return fmt.Errorf("flows says %s", out)
			}
			return nil
		})
	}
	for port := range 2 {
		q, err := guest.Question("udp", netip.Addr{}, netip.AddrPortFrom(nstest.Beyond4, uint16(9001+port)), 100)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		if answer, err := q.Answer(20 * time.Second); err != nil {
			t.Fatal(answer, err)
		}
	}
	patterns := func(event string) []string {
		return []string{
			`(?m)^\d\d:\d\d:\d\d\.\d{3}  ` + event + ` +udp  10\.0\.2\.2:\d+ -> 198\.51\.100\.9:9001 \(10\.244\.1\.7:\d+ -> 198\.51\.100\.9:9001\).*, egress: allow 198\.51\.100\.9 9001/udp$`,
			`(?m)^\d\d:\d\d:\d\d\.\d{3}  ` + event + ` +udp  10\.0\.2\.2:\d+ -> 198\.51\.100\.9:9002 .*, egress: refuse all, pinned: registry\.example$`,
		}
	}
	out, status := run(t, agent, "flows", "-netns", n.Pod.Path(), "-nic", "eth0")
	for _, p := range append(patterns("open"), ", 128 octets from the guest, 128 octets to it, ") {
		if status != 0 || !regexp.MustCompile(p).MatchString(out) {
			t.Errorf("flows: status %d, no %s in\n%s", status, p, out)
		}
	}
	nstest.Eventually(t, func() error {
		for _, p := range patterns("begin") {
			if !regexp.MustCompile(p).MatchString(text.String()) {
				return fmt.Errorf("no %s in\n%s", p, text.String())
			}
		}
		return nil
	})
	if out, status := run(t, agent, "teardown", "-cut-off", "-netns", n.Pod.Path(), "-nic", "eth0"); status != 0 { // which ends the flows
		t.Fatal(out)
	}
	nstest.Eventually(t, func() error {
		count := map[string]int{}
		for line := range strings.Lines(lines.String()) {
			var f phase1.Flow
			if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &f) == nil && f.NIC == "eth0" && f.ByGuest {
				count[fmt.Sprint(f.Event, f.Guest.Destination.Port(), f.Name, f.ToGuest)]++
			}
		}
		for _, wait := range waits {
			if err := wait(); err != nil {
				return err
			}
		}
		for _, want := range []string{"begin9001<nil>", "begin9002registry.example<nil>", "end9001&{1 128}", "end9002registry.example&{1 128}"} {
			if count[want] != 1 {
				return fmt.Errorf("%q: %v in\n%s", want, count, lines.String())
			}
		}
		return nil
	})
}

// TestRecordWithoutJournal: teardown finds no journal, and the record is there. It says why that can be, and what to
// do: one command removes the record where the namespace is there, and the other one where it is gone.
func TestRecordWithoutJournal(t *testing.T) {
	agent := nstest.Program(t, "examples/guestwire-agent")
	for _, gone := range []bool{false, true} {
		n, other := nstest.NewNetwork(t), nstest.NewNetwork(t)
		dir := filepath.Join(nstest.Dir(t), "node")
		nstest.Run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-dir", dir, "-state", n.State, "-uid", "0", "-binding", "bridge")
		journals, err := filepath.Glob(dir + "/*/eth0.journal")
		if err != nil || len(journals) != 1 || os.Remove(journals[0]) != nil {
			t.Fatal(journals, err)
		}
		if gone {
			n.Pod.Gone()
		}
		way := regexp.MustCompile(`: guestwire-agent (forget .*)\. If the namespace is there, and the journal is lost: guestwire-agent (teardown -force .*)\n`)
		var found []string
		for _, more := range [][]string{nil, {"-netns", other.Pod.Path()}} {
			out, status := run(t, agent, append([]string{"teardown", "-nic", "eth0", "-state", n.State, "-dir", dir}, more...)...)
			if found = way.FindStringSubmatch(out); status != 0 || found == nil || !strings.Contains(out, "guestwire-agent: "+filepath.Join(n.State, "eth0.json")+" stays") {
				t.Fatalf("teardown %q: status %d, %s", more, status, out)
			}
		}
		command := strings.Replace(found[2], "PATH", n.Pod.Path(), 1)
		if gone {
			command = found[1]
		}
		out, status := run(t, agent, strings.Fields(command)...)
		if left, err := os.ReadDir(n.State); status != 0 || err != nil || len(left) > 0 {
			t.Errorf("agent %s: status %d, %s; %v, %v are left", command, status, out, left, err)
		}
		if gone {
			continue
		}
		if inside := "nsenter --net=" + n.Pod.Path() + "\n"; !strings.HasSuffix(out, inside) {
			t.Errorf("agent %s: want %s after\n%s", command, inside, out)
		}
	}
}

// TestPipeAsFile: a configuration or a record can come by a pipe, and a signal ends the wait for one to which nobody
// writes. One without an end is refused.
func TestPipeAsFile(t *testing.T) {
	agent := nstest.Program(t, "examples/guestwire-agent")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"config", "-config", fifo}, {"plan", "-own", "-nic", "eth0", "-config", fifo}, {"plan", "-own", "-nic", "eth0", "-from", fifo},
		{"activate", "-own", "-nic", "eth0", "-inactive", fifo},
	} {
		cmd := exec.Command(agent, args...)
		var said nstest.Output
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var writer *os.File
		nstest.Eventually(t, func() (err error) { // fails as long as nobody reads
			writer, err = os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0)
			return err
		})
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		writer.Close()
		if code := cmd.ProcessState.ExitCode(); code <= 0 || !strings.Contains(said.String(), "terminated") {
			t.Errorf("%q: status %d: %s", args, code, said.String())
		}
	}
	for _, line := range []string{"config -config /dev/zero", "plan -own -nic eth0 -from /dev/zero", "activate -own -nic eth0 -inactive /dev/zero", "hook -nic eth0 </dev/zero", "config -config - </dev/zero"} {
		line = `ulimit -d 524288; "$0" ` + line // 512 MiB of memory
		out, err := exec.Command("bash", "-c", line, agent).CombinedOutput()
		if !regexp.MustCompile(`/dev/(zero|stdin): it has more than \d+ octets: `).Match(out) {
			t.Errorf("%s: %v: %.300s", line, err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte(`{"binding": {"bridge": {}}, "owner": {"uid": 107}, "state": "/run/guestwire/vm1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`"$0" config -config <(cat "$1")`, `cat "$1" | "$0" config -config /dev/stdin`} {
		if out, err := exec.Command("bash", "-c", line, agent, file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", line, err, out)
		}
	}
}

// TestWrongPlace: a configuration's error says at which line and column it is, or where a field belongs that stands
// elsewhere, and there it is right.
func TestWrongPlace(t *testing.T) {
	agent, file := nstest.Program(t, "examples/guestwire-agent"), filepath.Join(t.TempDir(), "config.json")
	config := func(text string) (string, int) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return run(t, agent, "config", "-config", file, "-uid", "107", "-state", "/run/guestwire/vm1")
	}
	for _, c := range []struct{ wrong, says, right string }{
		{`{"ports": ["80"], "binding": {"masquerade": {}}}`, ": ports: no such field in this version: it stands at binding.masquerade.ports or binding.passt.ports or binding.slirp.ports", `{"binding": {"masquerade": {"ports": ["80"]}}}`},
		{`{"binding": {"bridge": {"guard": {}}}}`, ": binding.bridge.guard: no such field in this version: it stands at guard\n", `{"guard": {}, "binding": {"bridge": {}}}`},
		{`{"binding": {"bridge": {}}, "hostname": "a"}`, ": hostname: no such field in this version: it stands at options.hostname\n", `{"binding": {"bridge": {}}, "options": {"hostname": "a"}}`},
		{`{"binding": {"bridge": {}}, "toGuest": {}}`, ": toGuest: no such field in this version: it stands at limits.toGuest\n", `{"binding": {"bridge": {}}, "limits": {"toGuest": {}}}`},
		{`{"binding": {"bridge": {}}, "limits": {"toGuest": {"packetsPerSecond": 9}}}`, ": limits.toGuest.packetsPerSecond: no such field in this version: it stands at limits.fromGuest.packetsPerSecond\n", `{"binding": {"bridge": {}}, "limits": {"fromGuest": {"packetsPerSecond": 9}}}`},
		{`{"binding": {"bridge": {}}, "nic": "eth0"}`, ": nic: no such field in this version: it is the flag -nic of setup\n", `{"binding": {"bridge": {}}}`},
		{`{"binding": {"bridge": {}}, "colour": 1}`, ": colour: no such field in this version\n", `{"binding": {"bridge": {}}}`},
		{"{\"binding\": {\"bridge\": {}},\n \"queues\": two}", file + ":2:13: invalid character 'w'", "{\"binding\": {\"bridge\": {}},\n \"queues\": 2}"},
		{"{\"binding\": {\"bridge\": {}},\n\n}", file + ":3:1: invalid character '}' looking for beginning of object key string (leave out the comma before it)", "{\"binding\": {\"bridge\": {}}\n\n}"},
		{"{", file + ":1:1: unexpected end", `{"binding": {"bridge": {}}}`},
		{"", file + ":1:0: unexpected end of JSON input (the file is empty)", `{"binding": {"bridge": {}}}`},
		{`{"binding": {"masquerade": {"ports": ["80",]}}}`, "(leave out the comma before it)", `{"binding": {"masquerade": {"ports": ["80"]}}}`},
		{`{"queues": 2 "binding": {"bridge": {}}}`, "(a comma is missing before it)", `{"queues": 2, "binding": {"bridge": {}}}`},
		{`{"binding": {"bridge": {}}} // mine`, "(JSON has no comments)", `{"binding": {"bridge": {}}}`},
		{`{'binding': {"bridge": {}}}`, `(want ")`, `{"binding": {"bridge": {}}}`},
	} {
		if out, status := config(c.wrong); status != 2 || !strings.Contains(out, c.says) {
			t.Errorf("%s: status %d: %swant %q", c.wrong, status, out, c.says)
		}
		if out, status := config(c.right); status != 0 {
			t.Errorf("%s: status %d: %s", c.right, status, out)
		}
	}
}
