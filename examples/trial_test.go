package examples_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// trial is a NIC with a fault. The row of a table says what a command prints, and what was run.
type trial struct {
	t            *testing.T
	n            nstest.Network
	text         string // that a command of the row prints
	ran          []string
	said, healed bool

	script  *testscript.TestScript
	printed string // by the last command
	started map[string]*beside
	port    *os.File // the guest's tap
	guest   *guest.Guest
}

// beside is a program that runs beside the script.
type beside struct {
	*nstest.Process
	in io.Closer
}

// command runs a program, and notes it.
func (p *trial) command(want int, program string, args ...string) string {
	p.t.Helper()
	cmd := exec.Command(program, args...)
	if p.script != nil {
		cmd.Dir = p.script.MkAbs(".")
	}
	p.note(program, args)
	out, err := cmd.CombinedOutput()
	if p.printed = string(out); err != nil && cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	if status := cmd.ProcessState.ExitCode(); status != want {
		p.t.Fatalf("%s: status %d, want %d:\n%s", p.ran[len(p.ran)-1], status, want, out)
	}
	return p.printed
}

// note notes a command line, and that of the launcher in it.
func (p *trial) note(program string, args []string) {
	line := filepath.Base(program)
	for _, arg := range args {
		if filepath.Base(arg) == "guestwire-launcher" {
			p.ran = append(p.ran, line)
			line = "guestwire-launcher"
			continue
		}
		line += " " + arg
	}
	p.ran = append(p.ran, line)
}

// withDefaults returns the agent's arguments for the trial's NIC, its owner and its state directory, but for those that
// are there. What follows "--" is a command.
func (p *trial) withDefaults(args []string) []string {
	args, command := slices.Clone(args), []string(nil)
	if i := slices.Index(args, "--"); i >= 0 {
		args, command = args[:i:i], args[i:]
	}
	set := func(flag, value string, instead ...string) {
		for _, f := range append(instead, flag) {
			if slices.Contains(args, f) {
				return
			}
		}
		args = append(args, flag, value)
	}
	verb := args[0]
	if verb == "list" || verb == "help" {
		return args
	}
	if verb == "doctor" {
		set("-uid", strconv.Itoa(nstest.LauncherUID))
		return args
	}
	if verb != "forget" {
		set("-netns", p.n.Pod.Path())
	}
	if verb != "exec" {
		set("-nic", "eth0")
	}
	if verb == "setup" || verb == "run" {
		set("-binding", "bridge", "-config")
		set("-state", p.n.State)
	}
	if verb == "setup" || verb == "run" || verb == "exec" {
		set("-uid", strconv.Itoa(nstest.LauncherUID))
	}
	return append(args, command...)
}

// agent calls it for the trial's NIC.
func (p *trial) agent(want int, args ...string) string {
	p.t.Helper()
	return p.command(want, nstest.Program(p.t, "examples/guestwire-agent"), p.withDefaults(args)...)
}

// config calls setup with a configuration.
func (p *trial) config(want int, text string) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return p.agent(want, "setup", "-config", path)
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

// stranger is a MAC such as QEMU gives a guest if no MAC is named.
var stranger = cache.MAC{0x52, 0x54, 0, 0x12, 0x34, 0x56}

// attachAsQEMU attaches to the guest's tap as it is: tap.Open would remove an address filter.
func (p *trial) attachAsQEMU() *os.File {
	p.t.Helper()
	fd := -1
	nstest.Attach(p.t, p.n.Pod.File, func() (err error) {
		if fd, err = unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				unix.Close(fd)
			}
		}()
		ifr, err := unix.NewIfreq("eth0-tap")
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	return os.NewFile(uintptr(fd), "eth0-tap")
}

// filterTap leaves an address filter on the tap, as a process does that has used the tap and ends.
func (p *trial) filterTap() {
	p.t.Helper()
	before := p.attachAsQEMU()
	defer before.Close()
	filter := struct {
		flags, count uint16
		address      cache.MAC
	}{count: 1, address: stranger}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, before.Fd(), unix.TUNSETTXFILTER, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		p.t.Fatal(errno)
	}
	p.sends(before, make([]byte, 60)) // Serve leaves a tap alone that was never used
}

// receives reports whether the guest's tap gets a broadcast of the world.
func (p *trial) receives(within time.Duration) bool {
	p.t.Helper()
	end := time.Now().Add(within)
	for time.Now().Before(end) {
		p.n.World.IP("neigh flush dev pod")
		p.n.World.Exec("bash", "-c", "echo >/dev/udp/10.244.1.99/9")
		if err := p.port.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			p.t.Fatal(err)
		}
		if _, err := p.port.Read(make([]byte, 2000)); err == nil {
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

// boot starts the guest of the record, and wants it to get an address.
func (p *trial) boot() *guest.Guest {
	p.t.Helper()
	g := nstest.Boot(p.t, p.n.Pod.File, p.record(), "guest")
	if _, err := g.DHCPv4(p.t.Context()); err != nil {
		p.t.Error(err)
	}
	return g
}

// says wants a text in what was printed; a row's own text counts.
func (p *trial) says(printed, text string) error {
	if !matches(text, printed) {
		return fmt.Errorf("no %q in\n%s", text, printed)
	}
	p.said = p.said || text == p.text
	return nil
}

// check ends the test with an error.
func (p *trial) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *trial) anotherPod() nstest.Network {
	n := nstest.NewNetwork(p.t)
	p.script.Setenv("SOURCE", n.Pod.Path())
	return n
}

// words returns a command of a script as it is typed: with the flags that the script leaves out, and programs' paths.
func (p *trial) words(args []string) []string {
	switch args[0] {
	case "guestwire-agent":
		args = append([]string{"guestwire-agent"}, p.withDefaults(args[1:])...)
	case "ip":
		args = append([]string{"ip", "-n", p.n.Pod.Name}, args[1:]...)
	}
	args = slices.Clone(args)
	for i, arg := range args {
		if slices.Contains([]string{"guestwire-agent", "guestwire-launcher", "guestwire-exporter"}, arg) {
			args[i] = nstest.Program(p.t, "examples/"+arg)
		}
	}
	return args
}

// do runs a command of a script.
func (p *trial) do(want int, args []string) {
	p.t.Helper()
	words := p.words(args)
	p.command(want, words[0], words[1:]...)
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
