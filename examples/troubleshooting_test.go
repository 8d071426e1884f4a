package examples_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/cni/calls"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// tables returns the rows of all tables of the document, by the text of the column in the table's header.
func tables(t *testing.T, path string) []map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]string
	var header []string
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !ok {
			header = nil
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case header == nil:
			header = cells
		case len(cells) != len(header):
			t.Errorf("%s: %d cells, want %d: %s", path, len(cells), len(header), line)
		case cells[0] != "---":
			row := map[string]string{}
			for i, name := range header {
				row[name] = cells[i]
			}
			rows = append(rows, row)
		}
	}
	return rows
}

var quoted = regexp.MustCompile("`([^`]+)`")

// inOneLine makes output comparable with a cell of a table.
func inOneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// matches reports whether the output has the text of the document, in which "..." stands for anything.
func matches(text, output string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(inOneLine(text)), `\.\.\.`, ".*")
	return regexp.MustCompile(pattern).MatchString(inOneLine(output))
}

// trial is one row of the document: what it says, and the commands run for it.
type trial struct {
	t            *testing.T
	n            nstest.Network
	text         string // that a command of the row prints
	ran          []string
	said, healed bool
}

// command runs a program, and notes it.
func (p *trial) command(want int, program string, args ...string) string {
	p.t.Helper()
	p.ran = append(p.ran, strings.Join(append([]string{filepath.Base(program)}, args...), " "))
	out, status := run(p.t, program, args...)
	if status != want {
		p.t.Fatalf("%s: status %d, want %d:\n%s", p.ran[len(p.ran)-1], status, want, out)
	}
	return out
}

// agent calls it for the pod's eth0, unless the arguments name another namespace, or the verb needs none.
func (p *trial) agent(want int, args ...string) string {
	p.t.Helper()
	if args[0] != "list" && args[0] != "forget" && !slices.Contains(args, "-netns") {
		args = append(args, "-netns", p.n.Pod.Path())
	}
	if args[0] != "list" && !slices.Contains(args, "-nic") {
		args = append(args, "-nic", "eth0")
	}
	return p.command(want, nstest.Program(p.t, "examples/agent"), args...)
}

// setup calls setup with the same flags each time; more comes before them.
func (p *trial) setup(want int, more ...string) string {
	p.t.Helper()
	args := append([]string{"setup"}, more...)
	if !slices.Contains(args, "-binding") && !slices.Contains(args, "-config") {
		args = append(args, "-binding", "bridge")
	}
	if !slices.Contains(args, "-state") {
		args = append(args, "-state", p.n.State)
	}
	return p.agent(want, append(args, "-uid", strconv.Itoa(nstest.LauncherUID))...)
}

// moving wires a guest in another pod, from which it will move to the trial's. It returns the agent of that pod, and
// the file with the record there.
func (p *trial) moving() (source func(want int, args ...string) string, record string) {
	p.t.Helper()
	n := nstest.NewNetwork(p.t)
	source = func(want int, args ...string) string {
		p.t.Helper()
		return p.agent(want, append(args, "-netns", n.Pod.Path())...)
	}
	source(0, "setup", "-binding", "bridge", "-state", n.State, "-uid", strconv.Itoa(nstest.LauncherUID))
	return source, filepath.Join(n.State, "eth0.json")
}

// config calls setup with a configuration.
func (p *trial) config(want int, text string) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return p.setup(want, "-config", path)
}

func (p *trial) ip(line string) string {
	p.t.Helper()
	return p.command(0, "ip", append([]string{"-n", p.n.Pod.Name}, strings.Fields(line)...)...)
}

// serve starts the launcher.
func (p *trial) serve() *nstest.Process {
	p.t.Helper()
	p.ran = append(p.ran, "launcher serve")
	return p.n.Serve(p.t, nstest.LauncherUID)
}

// cannotServe starts a launcher that ends with an error, and returns what it printed.
func (p *trial) cannotServe(netns string, uid int, state string) string {
	p.t.Helper()
	p.ran = append(p.ran, "launcher serve")
	agent, user := nstest.Program(p.t, "examples/agent"), strconv.Itoa(uid)
	p.ran = append(p.ran, "agent exec -netns "+netns)
	out, status := run(p.t, agent, "exec", "-netns", netns, "-uid", user, "-gid", user, "--",
		"timeout", "60", nstest.Program(p.t, "examples/launcher"), "serve", "-state", state)
	if status != 1 {
		p.t.Fatalf("launcher serve: status %d, want 1:\n%s", status, out)
	}
	return out
}

// says wants the text of the row in the output of one of its commands.
func (p *trial) says(output string) {
	p.t.Helper()
	if p.said = matches(p.text, output); !p.said {
		p.t.Fatalf("no %q in\n%s", p.text, output)
	}
}

// saysSoon is says for output that is yet to come.
func (p *trial) saysSoon(output func() string) {
	p.t.Helper()
	nstest.Eventually(p.t, func() error {
		out := output()
		if p.said = matches(p.text, out); !p.said {
			return fmt.Errorf("no %q in\n%s", p.text, out)
		}
		return nil
	})
}

// wantWired wants the wiring as setup left it.
func (p *trial) wantWired() {
	p.t.Helper()
	p.agent(0, "check")
	p.healed = true
}

// unwired wants no trace of a wiring.
func (p *trial) unwired() {
	p.t.Helper()
	p.agent(3, "check")
	p.healed = true
}

func (p *trial) record() cache.Record {
	p.t.Helper()
	return nstest.Record(p.t, p.n.State, "eth0")
}

// guestTap attaches to the guest's tap.
func (p *trial) guestTap() *os.File {
	p.t.Helper()
	return nstest.OpenTap(p.t, p.n.Pod.File, "eth0-tap")
}

// boot starts the guest of the record.
func (p *trial) boot() *guest.Guest {
	p.t.Helper()
	return nstest.Boot(p.t, p.n.Pod.File, p.record(), "guest")
}

// leases wants the guest of the record to get an address.
func (p *trial) leases() {
	p.t.Helper()
	g := p.boot()
	defer g.Close()
	if _, err := g.DHCPv4(p.t.Context()); err != nil {
		p.t.Error(err)
	}
	p.healed = true
}

// journal is the path of the wiring's journal.
func (p *trial) journal() string {
	p.t.Helper()
	return filepath.Join(phase1.DefaultDir, p.record().Namespace, "eth0.journal")
}

// edit replaces text in a file, and returns a function that brings the file back.
func (p *trial) edit(path, from, to string) (back func()) {
	p.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), from) {
		p.t.Fatalf("no %q in %s: %v\n%s", from, path, err, text)
	}
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
	write(strings.Replace(string(text), from, to, 1))
	return func() { write(string(text)) }
}

func (p *trial) chmod(path string, mode os.FileMode) {
	p.t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		p.t.Fatal(err)
	}
}

func (p *trial) mkdir(path string, mode os.FileMode) {
	p.t.Helper()
	if err := os.Mkdir(path, mode); err != nil {
		p.t.Fatal(err)
	}
	p.chmod(path, mode)
}

// stranger is a MAC such as QEMU gives a guest if no MAC is named.
var stranger = cache.MAC{0x52, 0x54, 0, 0x12, 0x34, 0x56}

// attachAsQEMU attaches to the guest's tap as it is: tap.Open would remove an address filter.
func (p *trial) attachAsQEMU() *os.File {
	p.t.Helper()
	fd := -1
	err := netns.Do(p.n.Pod.File, func() (err error) {
		if fd, err = unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq("eth0-tap")
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "eth0-tap")
}

// receives reports whether the port gets a broadcast of the world.
func (p *trial) receives(port *os.File, within time.Duration) bool {
	p.t.Helper()
	end := time.Now().Add(within)
	for time.Now().Before(end) {
		p.n.World.IP("neigh flush dev pod")
		p.n.World.Exec("bash", "-c", "echo >/dev/udp/10.244.1.99/9")
		if err := port.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			p.t.Fatal(err)
		}
		if _, err := port.Read(make([]byte, 2000)); err == nil {
			return true
		}
	}
	return false
}

// txDropped is how many packets the kernel did not give to the tap's process.
func (p *trial) txDropped() (dropped int) {
	p.t.Helper()
	var links []struct {
		Stats struct{ TX struct{ Dropped int } } `json:"stats64"`
	}
	out, _ := stdout(p.t, "ip", "-n", p.n.Pod.Name, "-s", "-j", "link", "show", "eth0-tap")
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		p.t.Fatalf("%v in\n%s", err, out)
	}
	return links[0].Stats.TX.Dropped
}

// trials are the rows of the tables with a column "says", by that text.
var trials = map[string]func(p *trial){
	// The guest gets no address.

	"eth0-dhcp: <NO-CARRIER": func(p *trial) {
		p.setup(0)
		p.says(p.ip("link show eth0-dhcp"))
		p.serve()
		p.leases()
	},
	"eth0-tap: <NO-CARRIER": func(p *trial) {
		p.setup(0)
		p.says(p.ip("link show eth0-tap"))
		p.command(0, nstest.Program(p.t, "examples/launcher"), "xml", "-state", p.n.State)
		p.serve()
		p.leases()
	},
	// A frame on the tap stands for the VM, which takes long to boot.
	"another MAC than the record's speaks on the tap: the guest of the record is ..., this is ...; start the VM with mac=...": func(p *trial) {
		p.setup(0)
		launcher := p.serve()
		port := p.guestTap()
		p.saysSoon(func() string {
			arp := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, stranger[:], []byte{8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0},
				make([]byte, 4), []byte{255, 255, 255, 255}, []byte{0, 68, 0, 67, 0, 8, 0, 0})
			if _, err := port.Write(arp); err != nil && !errors.Is(err, unix.EIO) {
				p.t.Fatal(err)
			}
			return launcher.Output.String()
		})
		port.Close()
		p.leases()
	},
	"filter ... of eth0-tap is gone": func(p *trial) {
		p.setup(0)
		p.serve()
		p.n.Pod.Exec("tc", "filter", "del", "dev", "eth0-tap", "ingress")
		p.says(p.agent(4, "check"))
		p.setup(0)
		p.leases()
	},
	"TX: bytes ... dropped": func(p *trial) {
		p.setup(0)
		before := p.attachAsQEMU()
		filter := struct {
			flags, count uint16
			address      cache.MAC
		}{count: 1, address: stranger}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, before.Fd(), unix.TUNSETTXFILTER, uintptr(unsafe.Pointer(&filter))); errno != 0 {
			p.t.Fatal(errno)
		}
		p.sends(before, make([]byte, 60)) // Serve leaves a tap alone that was never used
		before.Close()
		port := p.attachAsQEMU()
		dropped := p.txDropped()
		if p.receives(port, 2*time.Second) {
			p.t.Error("the guest receives the world in spite of the filter")
		}
		if p.txDropped() <= dropped {
			p.t.Error("the number of dropped packets has not grown")
		}
		p.says(p.ip("-s link show eth0-tap"))
		port.Close()
		launcher := p.serve()
		nstest.Eventually(p.t, func() error {
			if out := launcher.Output.String(); !strings.Contains(out, "event=ready") {
				return errors.New(out)
			}
			return nil
		})
		port = p.attachAsQEMU()
		defer port.Close()
		p.healed = p.receives(port, time.Minute)
	},

	// The launcher ends, or warns.

	"run Phase1's Setup with this state directory first": func(p *trial) {
		p.setup(0)
		p.says(p.cannotServe(p.n.Pod.Path(), nstest.LauncherUID, nstest.Dir(p.t)))
		if out := p.agent(0, "list"); !strings.Contains(out, p.n.State) {
			p.t.Errorf("no %s in\n%s", p.n.State, out)
		}
		p.serve()
		p.leases()
	},
	"records: user ... cannot enter the directory: open ...: permission denied": func(p *trial) {
		p.setup(0)
		p.chmod(p.n.State, 0o700)
		p.says(p.cannotServe(p.n.Pod.Path(), nstest.LauncherUID, p.n.State))
		if out := p.agent(4, "check"); !strings.Contains(out, "chmod o+rx "+p.n.State) {
			p.t.Errorf("check says\n%s", out)
		}
		p.chmod(p.n.State, 0o755)
		p.serve()
		p.leases()
	},
	"user ... is not its owner: operation not permitted": func(p *trial) {
		p.setup(0)
		p.says(p.cannotServe(p.n.Pod.Path(), nstest.LauncherUID+1, p.n.State))
		if out := p.agent(0, "status"); !strings.Contains(inOneLine(out), "owner user "+strconv.Itoa(nstest.LauncherUID)) {
			p.t.Errorf("status says\n%s", out)
		}
		p.serve()
		p.leases()
	},
	"user ... cannot open the device (chmod 0666 /dev/net/tun, or a group that may): open /dev/net/tun: permission denied": func(p *trial) {
		p.setup(0)
		p.chmod(tap.Device, 0o600)
		defer p.chmod(tap.Device, 0o666)
		p.says(p.cannotServe(p.n.Pod.Path(), nstest.LauncherUID, p.n.State))
		p.chmod(tap.Device, 0o666)
		p.serve()
		p.leases()
	},
	"the calling thread is in the network namespace ..., and the tap is in ...: enter the namespace of the record first": func(p *trial) {
		p.setup(0)
		p.agent(0, "list")
		p.says(p.cannotServe(p.n.World.Path(), nstest.LauncherUID, p.n.State))
		p.serve()
		p.leases()
	},
	"another process is attached: device or resource busy": func(p *trial) {
		p.setup(0)
		first := p.serve()
		nstest.Eventually(p.t, func() error {
			// The process's own name is launcher.
			if out := p.ip("-d tuntap show"); !strings.Contains(out, fmt.Sprintf("launcher(%d)", first.Process.Pid)) {
				return fmt.Errorf("no launcher(%d) in\n%s", first.Process.Pid, out)
			}
			return nil
		})
		p.says(p.cannotServe(p.n.Pod.Path(), nstest.LauncherUID, p.n.State))
		first.Stop(p.t)
		p.serve()
		p.leases()
	},
	"attach to tap eth0-tap: another process is attached": func(p *trial) {
		p.setup(0)
		first := p.guestTap()
		p.ip("-d tuntap show")
		qemu := func(want int) string {
			p.t.Helper()
			return p.command(want, nstest.Program(p.t, "examples/agent"), "exec", "-netns", p.n.Pod.Path(), "-uid", strconv.Itoa(nstest.LauncherUID), "--",
				nstest.Program(p.t, "examples/launcher"), "qemu", "-state", p.n.State, "--", "true")
		}
		p.ran = append(p.ran, "launcher qemu")
		p.says(qemu(1))
		first.Close()
		qemu(0)
		p.healed = true
	},
	"the responder's tap was deleted; the guest is served again when the tap is back": func(p *trial) {
		p.setup(0)
		launcher := p.serve()
		p.leases()
		p.ip("link del eth0-dhcp")
		p.saysSoon(launcher.Output.String)
		p.setup(0)
		p.leases()
	},
	"the record was removed: the guest is no longer served": func(p *trial) {
		p.setup(0)
		launcher := p.serve()
		p.leases()
		if err := os.Remove(filepath.Join(p.n.State, "eth0.json")); err != nil {
			p.t.Fatal(err)
		}
		p.saysSoon(launcher.Output.String)
		p.setup(0)
		p.leases()
	},
	"version: ..., and this program reads ...: use the version of guestwire that wrote it": func(p *trial) {
		p.setup(0)
		back := p.edit(filepath.Join(p.n.State, "eth0.json"), fmt.Sprintf(`"version": %d`, cache.Version), `"version": 99`)
		p.says(p.cannotServe(p.n.Pod.Path(), nstest.LauncherUID, p.n.State))
		p.agent(0, "list")
		back() // which stands for the launcher of that version
		p.serve()
		p.leases()
	},

	// The guest has an address, and reaches nothing.

	"the IPv6 gateway ... has the MAC ..., the record's router is of ...": func(p *trial) {
		p.setup(0)
		p.n.World.IP("link set pod address 02:00:00:00:6a:02")
		p.says(p.agent(4, "check"))
		p.setup(0)
		p.wantWired()
	},
	"the IPv4 gateway ... has the MAC ..., the record's stand-in is of ...": func(p *trial) {
		p.n.World.IP("addr add 169.254.1.1/32 dev pod")
		p.ip("-4 addr flush dev eth0")
		p.ip("addr add 10.244.1.7/32 dev eth0")
		p.ip("route add 169.254.1.1 dev eth0 scope link")
		p.ip("route add default via 169.254.1.1")
		p.n.World.IP("route replace 10.244.1.7 dev pod")
		p.setup(0)
		p.n.World.IP("link set pod address 02:00:00:00:6a:02")
		p.says(p.agent(4, "check"))
		p.setup(0)
		p.wantWired()
	},
	"veth1 has [...] of eth0 too": func(p *trial) {
		p.ip("link add veth1 type veth peer name veth1peer")
		p.ip("addr add 10.244.1.7/32 dev veth1")
		p.ip("link set veth1 up")
		p.says(p.setup(0))
		p.says(p.agent(0, "status"))
		p.agent(0, "teardown")
		p.ip("link del veth1")
		p.setup(0)
		p.wantWired()
	},
	"eth0-tap is down": func(p *trial) {
		p.setup(0)
		p.ip("link set eth0-tap down")
		p.says(p.agent(4, "check"))
		p.setup(0)
		p.wantWired()
	},
	"table ... is gone": func(p *trial) {
		p.setup(0)
		p.n.Pod.Exec("nft", "flush", "ruleset")
		p.says(p.agent(4, "check"))
		p.setup(0)
		p.wantWired()
	},
	"no such link any more in this namespace": func(p *trial) {
		p.setup(0)
		p.ip("link del eth0-nic")
		p.says(p.agent(1, "check"))
		p.says(p.agent(1, "status"))
		metric := fmt.Sprintf(`guestwire_differences{netns="%s",nic="eth0",state="%s"} 1`, p.record().Namespace, p.n.State)
		if out, status := stdout(p.t, nstest.Program(p.t, "examples/exporter")); status != 0 || !strings.Contains(out, metric) {
			p.t.Errorf("status %d, no %s in\n%s", status, metric, out)
		}
		p.agent(0, "teardown")
		p.ip("link add eth0 type veth peer name eth0peer")
		p.setup(0, "-binding", "redirect")
		p.wantWired()
	},
	"route default via ... dev eth0 is gone": func(p *trial) {
		p.setup(0, "-binding", "redirect")
		p.ip("route replace default via 10.244.1.99")
		p.says(p.agent(4, "check"))
		p.setup(0, "-binding", "redirect")
		p.wantWired()
		p.agent(0, "teardown")
		p.ip("route del default via 10.244.1.1")
		p.setup(0, "-binding", "redirect")
		p.wantWired()
		if routes := fmt.Sprint(p.record().IPv4.Routes); !strings.Contains(routes, "10.244.1.99") || strings.Contains(routes, "10.244.1.1}") {
			p.t.Errorf("the record has the routes %s", routes)
		}
	},
	"hook forward priority filter; policy drop": func(p *trial) {
		p.setup(0, "-binding", "routed")
		nft := func(args ...string) string {
			return p.command(0, "ip", append([]string{"netns", "exec", p.n.Pod.Name, "nft"}, args...)...)
		}
		nft("add table ip other")
		nft("add chain ip other forward { type filter hook forward priority filter; policy drop; }")
		p.serve()
		g := p.boot()
		defer g.Close()
		if _, err := g.DHCPv4(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
		short, cancel := context.WithTimeout(p.t.Context(), time.Second)
		defer cancel()
		if _, err := g.Ping(short, nstest.Gateway4); err == nil {
			p.t.Error("the guest reaches its gateway past the other program's rules")
		}
		if out := p.agent(0, "status"); !strings.Contains(out, "dropped    nothing") {
			p.t.Errorf("want nothing dropped, in\n%s", out)
		}
		p.says(nft("list", "chains"))
		nft("add rule ip other forward iifname eth0-tap accept")
		nft("add rule ip other forward oifname eth0-tap accept")
		if _, err := g.Ping(p.t.Context(), nstest.Gateway4); err != nil {
			p.t.Error(err)
		}
		p.wantWired()
	},
	"dropped ... packet...: ...": func(p *trial) {
		p.setup(0)
		port := p.guestTap()
		defer port.Close()
		link := p.link()
		link.MAC = stranger
		p.sends(port, link.Ask(unix.IPPROTO_UDP, link.IPv4, link.Far4, 5001))
		p.says(p.agent(0, "status"))
		p.healed = true // TestTroubleshootingReasons goes on
	},

	// Setup fails.

	"waits for another call, which holds ...: process ... (...)": func(p *trial) {
		p.setup(0)
		var stat unix.Stat_t
		if err := unix.Fstat(int(p.n.Pod.File.Fd()), &stat); err != nil {
			p.t.Fatal(err)
		}
		lock, err := os.Create(filepath.Join(phase1.DefaultDir, fmt.Sprint(stat.Ino)))
		if err != nil {
			p.t.Fatal(err)
		}
		defer lock.Close()
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			p.t.Fatal(err)
		}
		var out nstest.Output
		waiting := exec.Command(nstest.Program(p.t, "examples/agent"), "check", "-netns", p.n.Pod.Path(), "-nic", "eth0")
		waiting.Stdout, waiting.Stderr = &out, &out
		if err := waiting.Start(); err != nil {
			p.t.Fatal(err)
		}
		p.saysSoon(out.String)
		lock.Close()
		if err := waiting.Wait(); err != nil {
			p.t.Error(err)
		}
		p.wantWired()
	},
	"user ... is not root": func(p *trial) {
		args := []string{"--reuid", "64055", "--clear-groups", nstest.Program(p.t, "examples/agent"), "setup", "-netns", p.n.Pod.Path(), "-nic", "eth0",
			"-uid", "64055", "-binding", "bridge", "-state", p.n.State}
		p.says(p.command(1, "setpriv", args...))
		p.setup(0)
		p.wantWired()
	},
	"the caller's own network namespace": func(p *trial) {
		p.says(p.setup(1, "-netns", "/proc/self/ns/net"))
		p.setup(0)
		p.wantWired()
	},
	"no such link; the namespace has ...": func(p *trial) {
		p.says(p.setup(1, "-nic", "eth9"))
		p.ip("link")
		p.setup(0)
		p.wantWired()
	},
	"... binding: ...; ... would work": func(p *trial) {
		p.says(p.setup(5, "-binding", "macvtap"))
		p.setup(0, "-binding", "auto")
		p.wantWired()
	},
	"no such field in this version": func(p *trial) {
		p.says(p.config(2, `{"routed": {}}`))
		p.command(0, nstest.Program(p.t, "examples/agent"), "help", "setup")
		p.config(0, `{"binding": {"routed": {}}}`)
		p.wantWired()
	},
	"network in use": func(p *trial) {
		p.says(p.config(1, `{"binding": {"masquerade": {"ipv4": "10.244.0.0/16"}}}`))
		p.config(0, `{"binding": {"masquerade": {"ipv4": "10.99.0.0/24"}}}`)
		p.agent(0, "teardown")
		p.config(0, `{"binding": {"masquerade": {"ipv4": "10.244.0.0/16", "guest": ["10.244.9.9"]}}}`)
		p.wantWired()
	},
	"which the routed binding gives to the namespace, is an address of": func(p *trial) {
		p.ip("addr add 169.254.75.1/32 dev lo")
		p.says(p.setup(5, "-binding", "routed"))
		p.setup(0, "-binding", "masquerade")
		p.agent(0, "teardown")
		p.ip("addr del 169.254.75.1/32 dev lo")
		p.setup(0, "-binding", "routed")
		p.wantWired()
	},
	"cannot open /dev/net/tun (...), so the launcher could not use a tap": func(p *trial) {
		p.chmod(tap.Device, 0o600)
		defer p.chmod(tap.Device, 0o666)
		p.says(p.setup(1))
		p.chmod(tap.Device, 0o666)
		p.setup(0)
		p.wantWired()
	},
	"held by another process": func(p *trial) {
		user := strconv.Itoa(nstest.LauncherUID)
		held := exec.Command(nstest.Program(p.t, "examples/agent"), "run", "-netns", p.n.Pod.Path(), "-nic", "eth0", "-binding", "bridge", "-state", p.n.State,
			"-uid", user, "--", "sh", "-c", "echo runs; read line")
		in, err := held.StdinPipe()
		if err != nil {
			p.t.Fatal(err)
		}
		out, err := held.StdoutPipe()
		if err != nil {
			p.t.Fatal(err)
		}
		if err := held.Start(); err != nil {
			p.t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			p.t.Fatal(line, err)
		}
		p.says(p.agent(7, "teardown"))
		p.says(p.agent(7, "run", "-netns", p.n.Pod.Path(), "-nic", "eth0", "-binding", "bridge", "-state", p.n.State, "-uid", user, "--", "true"))
		p.agent(0, "check")
		p.agent(0, "teardown", "-cut-off")
		in.Close()
		held.Wait() // the shell's status is that of read
		p.setup(0)
		p.wantWired()
	},
	"already wired, and not by ...": func(p *trial) {
		p.setup(0)
		run := func(want int) string {
			p.t.Helper()
			user := strconv.Itoa(nstest.LauncherUID)
			return p.agent(want, "run", "-netns", p.n.Pod.Path(), "-nic", "eth0", "-binding", "bridge", "-state", p.n.State, "-uid", user, "--", "true")
		}
		p.says(run(1))
		p.agent(0, "check")
		p.command(0, nstest.Program(p.t, "examples/agent"), "exec", "-netns", p.n.Pod.Path(), "-uid", strconv.Itoa(nstest.LauncherUID), "--", "true")
		p.agent(0, "teardown")
		run(0)
		p.setup(0)
		p.wantWired()
	},
	"device.driver vhost: open /dev/vhost-net: ...": func(p *trial) {
		if _, err := os.Stat("/dev/vhost-net"); err == nil {
			nstest.LeaveOut(p.t, "the machine has the device")
		}
		owner := fmt.Sprintf(`"owner": {"uid": %d, "ownDevices": true}`, nstest.LauncherUID)
		qemu := func(want int) string {
			p.t.Helper()
			return p.command(want, nstest.Program(p.t, "examples/agent"), "exec", "-netns", p.n.Pod.Path(), "-uid", strconv.Itoa(nstest.LauncherUID),
				"-groups", "36", "--", nstest.Program(p.t, "examples/launcher"), "qemu", "-state", p.n.State, "--", "true")
		}
		p.ran = append(p.ran, "launcher qemu")
		p.config(0, `{"binding": {"bridge": {}}, `+owner+`, "device": {"driver": "vhost"}}`)
		p.says(qemu(1))
		p.config(0, `{"binding": {"bridge": {}}, `+owner+`, "device": {"driver": "qemu"}}`)
		qemu(0)
		p.healed = true
	},
	"device.driver vhost: stat /dev/vhost-net: no such file or directory": func(p *trial) {
		if _, err := os.Stat("/dev/vhost-net"); err == nil {
			nstest.LeaveOut(p.t, "the machine has the device")
		}
		p.says(p.config(1, `{"binding": {"bridge": {}}, "device": {"driver": "vhost"}}`))
		p.config(0, `{"binding": {"bridge": {}}, "device": {"driver": "qemu"}}`)
		p.wantWired()
	},
	"owner.selinux: context ...: this kernel runs without SELinux": func(p *trial) {
		if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
			nstest.LeaveOut(p.t, "the machine has SELinux")
		}
		p.says(p.config(2, `{"binding": {"bridge": {}}, "owner": {"selinux": "system_u:system_r:container_t:s0"}}`))
		p.setup(0)
		p.wantWired()
	},
	"cannot enter ... (...), so the launcher could not read the record": func(p *trial) {
		p.chmod(p.n.State, 0o750)
		p.says(p.setup(1))
		p.chmod(p.n.State, 0o755)
		p.setup(0)
		p.wantWired()
	},
	"is not there: make it first (mkdir -p ...)": func(p *trial) {
		state := filepath.Join(p.n.State, "above", "vm1")
		p.says(p.setup(1, "-state", state))
		p.mkdir(filepath.Dir(state), 0o755)
		p.setup(0, "-state", state)
		p.wantWired()
	},
	"state directory: ...: owner ..., mode ..., want owner 0 and mode 0755 or less": func(p *trial) {
		p.chmod(p.n.State, 0o777)
		p.says(p.setup(1))
		p.chmod(p.n.State, 0o755)
		p.setup(0)
		p.wantWired()
	},
	"journal directory: ...: owner ..., mode ..., want owner 0 and mode 0700 or less": func(p *trial) {
		dir := filepath.Join(p.n.State, "node")
		p.mkdir(dir, 0o755)
		p.says(p.setup(1, "-dir", dir))
		p.chmod(dir, 0o700)
		p.setup(0, "-dir", dir)
		p.agent(0, "check", "-dir", dir)
		p.healed = true
	},
	"journal directory (name another one where ... cannot be written)": func(p *trial) {
		dir := filepath.Join(nstest.Dir(p.t), "ro")
		p.mkdir(dir, 0o755)
		nstest.Run(p.t, "mount", "-t", "tmpfs", "-o", "ro,mode=755", "none", dir)
		defer nstest.Run(p.t, "umount", dir)
		p.says(p.setup(1, "-dir", filepath.Join(dir, "node")))
		other := filepath.Join(p.n.State, "node")
		p.setup(0, "-dir", other)
		p.agent(0, "check", "-dir", other)
		p.healed = true
	},
	"as from is the record of an active guest": func(p *trial) {
		source, record := p.moving()
		p.says(p.setup(6, "-from", record))
		p.setup(0, "-standby", "-from", record)
		source(0, "deactivate")
		p.agent(0, "activate", "-inactive", record)
		p.wantWired()
	},
	"is of an active guest: call Deactivate there": func(p *trial) {
		source, record := p.moving()
		p.setup(0, "-standby", "-from", record)
		p.says(p.agent(6, "activate", "-inactive", record))
		source(0, "deactivate")
		p.agent(0, "activate", "-inactive", record)
		p.wantWired()
	},
	"a guest of the routed binding cannot move": func(p *trial) {
		source, record := p.moving()
		p.says(p.setup(2, "-binding", "routed", "-standby", "-from", record))
		p.setup(0, "-standby", "-from", record)
		source(0, "deactivate")
		p.agent(0, "activate", "-inactive", record)
		p.wantWired()
	},
	"under the routed binding the namespace answers for the guest's addresses all the time": func(p *trial) {
		p.says(p.setup(2, "-binding", "routed", "-standby"))
		p.setup(0, "-binding", "routed")
		p.says(p.agent(2, "deactivate"))
		p.agent(0, "teardown")
		p.setup(0)
		p.agent(0, "deactivate")
		p.agent(0, "activate", "-gone")
		p.wantWired()
	},
	"has the turn ..., and this namespace knows the turn ...": func(p *trial) {
		source, record := p.moving()
		p.setup(0, "-standby", "-from", record)
		source(0, "deactivate")
		for range 3 {
			p.agent(0, "deactivate")
		}
		p.says(p.agent(6, "activate", "-inactive", record))
		for range 3 {
			source(0, "deactivate")
		}
		p.agent(0, "activate", "-inactive", record)
		p.wantWired()
	},
	"the record is of this namespace": func(p *trial) {
		source, record := p.moving()
		p.setup(0, "-standby", "-from", record)
		source(0, "deactivate")
		p.says(p.agent(6, "activate", "-inactive", filepath.Join(p.n.State, "eth0.json")))
		p.agent(0, "activate", "-inactive", record)
		p.wantWired()
	},
	"the record is of the guest ..., and this one is ...": func(p *trial) {
		source, record := p.moving()
		p.setup(0, "-standby")
		source(0, "deactivate")
		p.says(p.agent(6, "activate", "-inactive", record))
		p.agent(0, "teardown")
		p.setup(0, "-standby", "-from", record)
		p.agent(0, "activate", "-inactive", record)
		p.wantWired()
	},
	"and from is the record of the guest ...: Teardown first": func(p *trial) {
		_, record := p.moving()
		p.setup(0, "-standby")
		p.says(p.setup(1, "-standby", "-from", record))
		p.agent(0, "teardown")
		p.setup(0, "-standby", "-from", record)
		p.wantWired()
	},
	"the guest that moves here keeps its ..., but eth0 has ...": func(p *trial) {
		_, record := p.moving()
		p.ip("link set eth0 mtu 1400")
		p.says(p.setup(2, "-standby", "-from", record))
		p.ip("link set eth0 mtu 1450")
		p.setup(0, "-standby", "-from", record)
		p.wantWired()
	},
	"already wired with the ... binding": func(p *trial) {
		p.setup(0, "-binding", "redirect")
		p.says(p.setup(1))
		p.setup(0, "-binding", "redirect")
		p.agent(0, "teardown")
		p.setup(0)
		p.wantWired()
	},
	"already wired: state: ..., but the record of eth0 is in ...": func(p *trial) {
		p.setup(0)
		other := nstest.Dir(p.t)
		p.says(p.setup(2, "-state", other))
		p.setup(0)
		p.agent(0, "teardown")
		p.setup(0, "-state", other)
		p.wantWired()
	},
	"already wired in another namespace (...), which has the record ...": func(p *trial) {
		first := nstest.NewNetwork(p.t)
		p.setup(0, "-netns", first.Pod.Path())
		p.says(p.setup(1))
		p.setup(0, "-state", nstest.Dir(p.t))
		p.wantWired()
		p.agent(0, "teardown")
		p.agent(0, "teardown", "-netns", first.Pod.Path())
		p.setup(0)
		p.wantWired()
	},
	"already wired by another version of guestwire": func(p *trial) {
		p.setup(0)
		back := p.edit(filepath.Join(p.n.State, "eth0.json"), fmt.Sprintf(`"version": %d`, cache.Version), `"version": 99`)
		p.says(p.setup(1))
		back() // which stands for the agent of that version
		p.agent(0, "teardown")
		p.setup(0)
		p.wantWired()
	},
	"version ..., and this program reads ...: use the version of guestwire that wrote it": func(p *trial) {
		p.setup(0)
		p.edit(p.journal(), `"version":`, `"version":9`)
		p.says(p.setup(1))
		if out := p.agent(0, "list"); !matches("eth0 in "+p.n.Pod.Path()+": journal ...", out) {
			p.t.Errorf("list says\n%s", out)
		}
		p.agent(0, "teardown", "-force")
		p.setup(0)
		p.wantWired()
	},
	"already wired, as links and tables of it say, but ... has no journal of it": func(p *trial) {
		other := filepath.Join(p.n.State, "node")
		p.setup(0, "-dir", other)
		p.says(p.setup(1))
		p.setup(0, "-dir", other)
		p.agent(0, "teardown", "-force")
		p.setup(0)
		p.wantWired()
	},
	"its forced Teardown was interrupted: call Teardown first": func(p *trial) {
		p.setup(0)
		p.edit(p.journal(), `"spec":`, `"salvaged":true,"spec":`)
		p.says(p.setup(1))
		p.agent(0, "teardown")
		p.setup(0)
		p.wantWired()
	},
	"already wired, it is a port of ...: take it off first": func(p *trial) {
		p.n.Pod.IP("link add br0 type bridge")
		p.n.Pod.IP("link set eth0 master br0")
		p.says(p.setup(1))
		p.ip("link set eth0 nomaster")
		p.setup(0)
		p.wantWired()
	},
	"already wired, it is the wired NIC ... under another name": func(p *trial) {
		p.setup(0)
		p.says(p.agent(1, "setup", "-uid", "0", "-binding", "bridge", "-state", p.n.State+"-2", "-nic", "eth0-nic"))
		p.wantWired()
	},
	"already wired, a link called ... is there": func(p *trial) {
		p.n.Pod.IP("link add eth0-br type bridge")
		p.says(p.setup(1))
		p.ip("link del eth0-br")
		p.setup(0)
		p.wantWired()
	},

	// Teardown fails, or an engine's DEL.

	"network namespace: open ...: no such file or directory": func(p *trial) {
		p.setup(0)
		p.says(p.agent(2, "teardown", "-netns", p.n.Pod.Path()+"-typo"))
		if out := p.agent(0, "list"); !strings.Contains(out, p.n.Pod.Path()) {
			p.t.Errorf("list says\n%s", out)
		}
		p.agent(0, "teardown")
		p.setup(0)
		p.n.Pod.End()
		p.says(p.agent(2, "teardown"))
		if out := p.agent(0, "list"); !strings.Contains(out, "(gone)") {
			p.t.Errorf("list says\n%s", out)
		}
		p.forget()
	},
	"network namespace: open ...: no such file or directory (want a path: -netns ...)": func(p *trial) {
		p.setup(0)
		p.says(p.agent(2, "teardown", "-netns", filepath.Base(p.n.Pod.Path())))
		p.agent(0, "teardown", "-netns", p.n.Pod.Path())
		p.unwired()
	},
	"the namespace is not gone: ... is at ...; Teardown takes it down": func(p *trial) {
		p.setup(0)
		p.says(p.agent(1, "forget", "-state", p.n.State))
		p.agent(0, "teardown")
		p.unwired()
	},
	"is not wired in this namespace: nothing is taken down": func(p *trial) {
		p.says(p.agent(0, "teardown"))
		p.agent(0, "list")
		p.unwired()
	},
	"in use: a process has tap eth0-tap open": func(p *trial) {
		p.setup(0)
		vmm := p.guestTap()
		defer vmm.Close()
		p.says(p.agent(7, "teardown"))
		p.agent(0, "check")
		p.agent(0, "teardown", "-cut-off")
		p.unwired()
	},
	"eth0 has gone; everything else is removed": func(p *trial) {
		p.setup(0)
		p.ip("link del eth0-nic")
		p.says(p.agent(0, "teardown"))
		p.unwired()
	},
	"state: ..., but the record of eth0 is in ...: name that directory; a teardown needs none": func(p *trial) {
		p.setup(0)
		p.says(p.agent(2, "teardown", "-state", p.n.State+"-typo"))
		p.agent(0, "teardown")
		p.unwired()
	},
	"has no journal of it: name the directory that Setup used (agent -dir); if the journal is lost, or was discarded (agent teardown -discard), take the NIC down by force": func(p *trial) {
		p.setup(0)
		if err := os.Remove(p.journal()); err != nil {
			p.t.Fatal(err)
		}
		p.says(p.agent(1, "teardown"))
		p.agent(0, "teardown", "-force", "-state", p.n.State)
		p.unwired()
	},
	"the file is damaged, and how the namespace was before Setup is not known": func(p *trial) {
		p.setup(0)
		if err := os.Truncate(p.journal(), 100); err != nil {
			p.t.Fatal(err)
		}
		p.says(p.agent(1, "teardown"))
		p.agent(0, "teardown", "-force")
		p.unwired()
	},

	// What is on this node.

	"NIC NAMESPACE BINDING OWNER SINCE VERSION STATE": func(p *trial) {
		p.setup(0)
		out := p.agent(0, "list")
		p.says(out)
		if !matches("eth0 "+p.n.Pod.Path()+" bridge "+strconv.Itoa(nstest.LauncherUID)+":0 ... "+p.n.State, out) {
			p.t.Errorf("list says\n%s", out)
		}
		p.wantWired()
	},
	"(gone)": func(p *trial) {
		p.setup(0)
		p.n.Pod.End()
		p.says(p.agent(0, "list"))
		p.forget()
	},
	"/proc/.../ns/net": func(p *trial) {
		p.setup(0)
		launcher := p.serve()
		p.leases()
		p.healed = false
		p.n.Pod.End()
		p.says(p.agent(0, "list"))
		path := fmt.Sprintf("/proc/%d/ns/net", launcher.Process.Pid)
		p.agent(0, "teardown", "-netns", path)
		p.agent(3, "check", "-netns", path)
		p.healed = true
	},
}

// forget wants the wiring of the namespace that is gone to be forgotten.
func (p *trial) forget() {
	p.t.Helper()
	out := p.agent(0, "forget", "-state", p.n.State)
	if !matches("record "+p.n.State+"/eth0.json ... journal ...", out) {
		p.t.Errorf("forget says\n%s", out)
	}
	if out := p.agent(0, "forget", "-state", p.n.State); !strings.Contains(out, "nothing is left") {
		p.t.Errorf("forget says once more\n%s", out)
	}
	out = p.agent(0, "list")
	p.healed = !strings.Contains(out, p.n.State)
}

// link is the guest's link under bridge and redirect.
func (p *trial) link() frames.Link {
	r := p.record()
	l := frames.Link{MAC: r.MAC, IPv4: nstest.Pod4, IPv6: nstest.Pod6, Gateway4: nstest.Gateway4, Gateway6: nstest.Gateway6,
		Far4: nstest.Beyond4, Far6: nstest.Beyond6, Served: true, Gateway: cache.MAC{2, 0, 0, 0, 0, 1}}
	if r.Binding == cache.BindingMasquerade {
		l.IPv4, l.Gateway4 = netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("10.0.2.1")
		fmt.Sscanf(p.n.Pod.Exec("cat", "/sys/class/net/eth0-tap/address"), "%02x:%02x:%02x:%02x:%02x:%02x",
			&l.Gateway[0], &l.Gateway[1], &l.Gateway[2], &l.Gateway[3], &l.Gateway[4], &l.Gateway[5])
	}
	return l
}

// sends sends the frame from the guest. Its tap may be down for a moment.
func (p *trial) sends(port *os.File, frame []byte) {
	p.t.Helper()
	nstest.Eventually(p.t, func() error {
		_, err := port.Write(frame)
		return err
	})
}

// needsTwoUsers are the rows about another user than root.
var needsTwoUsers = []string{
	"records: user ... cannot enter the directory: open ...: permission denied",
	"user ... is not its owner: operation not permitted",
	"user ... cannot open the device (chmod 0666 /dev/net/tun, or a group that may): open /dev/net/tun: permission denied",
	"user ... is not root",
	"cannot open /dev/net/tun (...), so the launcher could not use a tap",
	"cannot enter ... (...), so the launcher could not read the record",
}

const troubleshooting = "../docs/how-to/troubleshooting.md"

// TestTroubleshooting makes the fault of each row of the document, and wants the text that the row promises, and the
// repair to help.
func TestTroubleshooting(t *testing.T) {
	nstest.Need(t)
	left := maps.Clone(trials)
	for _, row := range tables(t, troubleshooting) {
		cell, ok := row["says"]
		if !ok {
			continue
		}
		text := strings.Trim(quoted.FindString(cell), "`")
		try := left[text]
		if try == nil {
			t.Errorf("%q of the document is not tried", text)
			continue
		}
		delete(left, text)
		t.Run(strings.Map(wordsOnly, text), func(t *testing.T) {
			if slices.Contains(needsTwoUsers, text) {
				nstest.NeedRoot(t, "the test needs two users")
			}
			if !strings.Contains(text, tap.Device) { // which has one mode for all
				t.Parallel()
			}
			p := &trial{t: t, n: nstest.NewNetwork(t), text: text}
			try(p)
			if !p.said || !p.healed {
				t.Errorf("said: %v, healed: %v", p.said, p.healed)
			}
			for _, name := range []string{"fault", "command", "says", "why", "repair"} {
				for _, m := range quoted.FindAllStringSubmatch(row[name], -1) {
					p.wantRun(m[1])
				}
			}
		})
	}
	for text := range left {
		t.Errorf("%q is tried, and not in the document", text)
	}
}

// wordsOnly makes the name of a subtest.
func wordsOnly(r rune) rune {
	if r == '/' || r == '`' {
		return '_'
	}
	return r
}

// wantRun wants a command of the document to have been run. Its words in capitals stand for others.
func (p *trial) wantRun(command string) {
	p.t.Helper()
	words := strings.Fields(command)
	if !slices.Contains([]string{"agent", "launcher", "ip", "nft"}, words[0]) {
		return
	}
	for i, w := range words {
		words[i] = regexp.MustCompile(`\b[A-Z]{3,}\b`).ReplaceAllString(regexp.QuoteMeta(w), `\S+`)
	}
	pattern := regexp.MustCompile("^" + strings.Join(words, "( .*)? ") + "( |$)")
	if !slices.ContainsFunc(p.ran, pattern.MatchString) {
		p.t.Errorf("%q of the document was not run, of\n%s", command, strings.Join(p.ran, "\n"))
	}
}

// TestTroubleshootingReasons wants the fields that loosen the filter, by the document, to help.
func TestTroubleshootingReasons(t *testing.T) {
	rows := tables(t, reference+"drop-reasons.md")
	other := netip.MustParseAddr("10.9.0.7")
	for _, c := range []struct {
		reason, field, before, after string
		frame                        func(l frames.Link) []byte
	}{
		{"mac-spoof", "guard.macs", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"macs": ["` + stranger.String() + `"]}`, func(l frames.Link) []byte {
			l.MAC = stranger
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001)
		}},
		{"ip-spoof", "guard.prefixes", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"prefixes": ["10.9.0.0/24"]}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_UDP, other, l.Far4, 5001)
		}},
		{"vlan-tag", "guard.vlans", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"vlans": [5]}`, func(l frames.Link) []byte {
			return slices.Insert(l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001), 12, 0x81, 0x00, 0, 5)
		}},
		{"ethertype", "guard.etherTypes", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"etherTypes": ["0x8863"]}`, func(l frames.Link) []byte {
			return slices.Concat(l.Gateway[:], l.MAC[:], []byte{0x88, 0x63}, make([]byte, 46))
		}},
		{"namespace-service", "guard.open", `"binding": {"masquerade": {}}`, `"binding": {"masquerade": {}}, "guard": {"open": ["22"]}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_TCP, l.IPv4, l.Gateway4, 22)
		}},
		{"rate-limit", "limits", `"binding": {"bridge": {}}, "limits": {"fromGuest": {"packetsPerSecond": 1}}`, `"binding": {"bridge": {}}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001)
		}},
		{"connection-limit", "maxConnections", `"binding": {"masquerade": {"maxConnections": 1}}`, `"binding": {"masquerade": {"maxConnections": 100}}`, func(l frames.Link) []byte {
			connections++
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5000+connections)
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			p := &trial{t: t, n: nstest.NewNetwork(t)}
			p.config(0, "{"+c.before+"}")
			port := p.guestTap()
			defer port.Close()
			follow := exec.CommandContext(t.Context(), nstest.Program(t, "examples/agent"), "drops", "-netns", p.n.Pod.Path(), "-nic", "eth0")
			var followed, said nstest.Output
			follow.Stdout, follow.Stderr = &followed, &said
			follow.Cancel = func() error { return follow.Process.Signal(unix.SIGTERM) }
			if err := follow.Start(); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, func() error {
				p.sends(port, c.frame(p.link()))
				if !strings.Contains(followed.String(), " "+c.reason+" ") {
					return fmt.Errorf("agent drops says\n%s", followed.String())
				}
				return nil
			})
			if err := follow.Process.Signal(unix.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := follow.Wait(); err != nil || !strings.Contains(said.String(), "follows what is dropped") {
				t.Errorf("agent drops: %v, %s", err, said.String())
			}
			if out := p.agent(0, "status"); !matches("dropped ... packet...: "+c.reason, out) {
				t.Errorf("status says\n%s", out)
			}
			if out := p.agent(0, "status"); c.reason == "rate-limit" && !strings.Contains(out, "from the guest: 1 packet a second") {
				t.Errorf("status says\n%s", out)
			}
			i := slices.IndexFunc(rows, func(row map[string]string) bool { return row["reason"] == c.reason })
			if i < 0 || !strings.Contains(rows[i]["what to do"], c.field) {
				t.Errorf("the document does not name %s for %s", c.field, c.reason)
			}
			p.config(0, "{"+c.after+"}")
			dropped := func() string { return regexp.MustCompile(`\d+ packets?: ` + c.reason).FindString(p.agent(0, "status")) }
			before := dropped()
			for range 3 {
				p.sends(port, c.frame(p.link()))
			}
			if after := dropped(); after != before {
				t.Errorf("with %s, status says %s, and said %s", c.field, after, before)
			}
		})
	}
}

// connections numbers the guest's connections.
var connections uint16

// TestMetricsAreDocumented wants the metrics of the document to be those that the exporter prints.
func TestMetricsAreDocumented(t *testing.T) {
	p := &trial{t: t, n: nstest.NewNetwork(t)}
	config := filepath.Join(t.TempDir(), "egress.json")
	if err := os.WriteFile(config, []byte(`{"binding": {"routed": {}}, "egress": ["refuse all"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.setup(0, "-config", config)
	if err := calls.Count(t.Context(), phase1.DefaultDir, "ADD", 0, time.Second); err != nil {
		t.Fatal(err)
	}
	metrics := map[string]string{}
	for _, row := range tables(t, reference+"metrics.md") {
		if row["metric"] != "" && row["metric"] != "guestwire_pod_info" { // which guestwire-node serves
			metrics[row["metric"]] = row["meaning"]
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, nstest.Program(t, "examples/exporter")).Output()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, meaning, _ := strings.Cut(strings.TrimSpace(rest), " ")
			have[name] = meaning
		}
	}
	if !maps.Equal(have, metrics) {
		t.Errorf("the document has\n%v\nand the exporter\n%v", metrics, have)
	}
}
