package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// The kinds of a finding.
const (
	ok      = "ok"
	warning = "warning"
	fault   = "fault"
)

// findings are the lines of doctor. The text of a warning or a fault has its way out.
type findings []cache.Finding

func (f *findings) add(level, subject, format string, args ...any) {
	*f = append(*f, cache.Finding{Kind: level, Grave: level == fault, What: subject, Why: fmt.Sprintf(format, args...)})
}

// faults is the number of faults.
func (f findings) faults() (n int) {
	for _, x := range f {
		if x.Grave {
			n++
		}
	}
	return n
}

// doctor asks what a fault would ask later. What the engine checks, it lets the engine check: it wires a NIC of its own
// in a namespace of its own, which ends with the call, and asks Status or Plan for the NIC that is named.
func doctor(ctx context.Context, o *options) error {
	if o.Name != "" && o.NetNS == nil && !o.Own {
		return commandline.Errorf("-netns is missing: name the network namespace of %s, or -own for the agent's own", o.Name)
	}
	quiet := *o
	quiet.Progress = nil
	o = &quiet
	var f findings
	f.machine(o.Owner.SELinux)
	if unix.Geteuid() != 0 {
		f.add(fault, "user", "%d is not root: run guestwire-agent doctor as root", unix.Geteuid())
	} else {
		f.node(ctx, o)
		if !o.Own {
			f.bindings(ctx, o)
		}
		if o.Name != "" {
			f.nic(ctx, o)
		}
	}
	if o.json {
		if err := printJSON(f); err != nil {
			return err
		}
	} else {
		printLevels(func(table *tabwriter.Writer) {
			for _, x := range f {
				fmt.Fprintf(table, "%s\t%s\t%s\n", x.Kind, x.What, x.Why)
			}
		})
	}
	if n := f.faults(); n > 0 {
		return said(errors.New(count(n, fault)))
	}
	return nil
}

// machine looks at program, kernel and security modules. The context is that of owner.selinux.
func (f *findings) machine(context string) {
	f.add(ok, "guestwire-agent", "%s", commandline.Version())
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.add(fault, "kernel", "%v", err)
		return
	}
	release := unix.ByteSliceToString(u.Release[:])
	system := ""
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, is := strings.CutPrefix(line, "PRETTY_NAME="); is {
				system = ", " + strings.Trim(strings.TrimSpace(name), `"`)
			}
		}
	}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 5 || major == 5 && minor < 14) {
		f.add(fault, "kernel", "Linux %s%s: guestwire needs Linux 5.14 or a later version: boot one", release, system)
	} else {
		f.add(ok, "kernel", "Linux %s, %s%s", release, unix.ByteSliceToString(u.Machine[:]), system)
	}
	f.modules("/proc/sys/kernel")
	f.security("", context)
}

// security looks what confines this program, by the files below a root directory. The context is that of owner.selinux.
func (f *findings) security(root, context string) {
	known, confined := false, false
	if mode, err := os.ReadFile(root + "/sys/fs/selinux/enforce"); err == nil {
		known = true
		if string(mode) == "1" && context == "" {
			f.add(warning, "security", "SELinux enforces its policy: owner.selinux has to name the launcher's context (ps -Z); docs/how-to/confine.md has the rules")
			confined = true
		}
	}
	if label, err := os.ReadFile(root + "/proc/self/attr/apparmor/current"); err == nil {
		known = true
		if !strings.HasPrefix(string(label), "unconfined") {
			f.add(warning, "security", "AppArmor confines this program by %s: docs/how-to/confine.md has the rules", strings.TrimSpace(string(label)))
			confined = true
		}
	}
	if _, err := os.Stat(root + "/sys/kernel/security/lsm"); err != nil && !known {
		f.add(ok, "security", "SELinux and AppArmor are not seen here")
	} else if !confined {
		f.add(ok, "security", "nothing confines this program")
	}
}

// modules looks whether the kernel can load a module that a binding needs, by the settings in the directory. A kernel
// without modules has none. The program that loads modules is the machine's, and not a file of a container's.
func (f *findings) modules(settings string) {
	if disabled, err := os.ReadFile(settings + "/modules_disabled"); err == nil && strings.TrimSpace(string(disabled)) == "1" {
		f.add(warning, "modules", "kernel.modules_disabled is 1, so the kernel loads no more modules: boot without it if a fault names one")
	}
	loader, err := os.ReadFile(settings + "/modprobe")
	if path := strings.TrimSpace(string(loader)); err == nil && filepath.Base(path) != "modprobe" {
		f.add(warning, "modules", "kernel.modprobe is %q, so the kernel loads no module by itself: sysctl -w kernel.modprobe=/sbin/modprobe, or modprobe what a fault names", path)
	}
}

// node looks at the journals of the node, and at who serves its guests.
func (f *findings) node(ctx context.Context, o *options) {
	wirings, err := phase1.List(ctx, o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		f.add(ok, "journals", "%s is not there: a first setup makes it", o.Dir)
		return
	}
	if err != nil {
		f.add(fault, "journals", "%v", err)
		return
	}
	f.add(ok, "journals", "%s, %s", o.Dir, count(len(wirings), "wired NIC"))
	for _, w := range wirings {
		subject := w.NIC + " in " + place(w)
		if w.Unreadable != "" {
			f.add(fault, subject, "%s", w.Unreadable)
			continue
		}
		if len(w.FoundAt) == 0 {
			f.add(warning, subject, "its namespace is gone: %s removes what is left", o.forgetCall(w))
			continue
		}
		switch report, err := reportOf(ctx, o, w); {
		case errors.Is(err, infra.ErrNoNIC):
			f.add(fault, subject, "%s", reason(w.NIC, err))
		case err != nil:
			f.add(warning, subject, "it cannot be looked at: %s", reason(w.NIC, err))
		case report.Drift != nil && w.NIC == o.Name && slices.Contains(w.FoundAt, o.netns): // nic says more
		case report.Drift != nil:
			f.add(fault, subject, "it is not as recorded (%s): %s says the repair of each", count(len(report.Drift.Differs), "difference"), o.call("doctor -netns "+infra.ShellWord(pathOf(w)), w.NIC))
		case half(w, &report.Counters) != nil:
			f.add(warning, subject, "%v", half(w, &report.Counters))
		default:
			f.add(ok, subject, "attached: %s", attached(w, &report.Counters))
			if w.NIC != o.Name || !slices.Contains(w.FoundAt, o.netns) { // nic says more
				f.warnings(subject, report.Record)
			}
		}
	}
}

// bindings wires a NIC of its own with each binding that makes taps, for the owner.
func (f *findings) bindings(ctx context.Context, o *options) {
	tried := []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}}
	if o.Binding != nil && o.Binding.Kind() != (infra.Auto{}).Kind() {
		tried = slices.DeleteFunc(tried, func(b infra.Binding) bool { return b.Kind() != o.Binding.Kind() })
	}
	if len(tried) == 0 {
		f.add(ok, string(o.Binding.Kind()), "makes no tap, so nothing was wired: with -netns and -nic, doctor plans the NIC")
		return
	}
	owner := o.Owner
	if owner == (infra.Owner{}) || owner.Inside {
		owner = infra.Owner{Root: true, SELinux: owner.SELinux}
		f.add(warning, "owner", "not named, so what follows is of root: name the launcher's user (guestwire-agent doctor -uid UID)")
	}
	above, err := directory.Trusted(filepath.Dir(o.Dir))
	if err != nil {
		f.add(fault, "journals", "%v: name another directory (guestwire-agent -dir)", err)
		return
	}
	defer above.Close()
	dir, err := directory.MkdirTemp(above, "guestwire-doctor-")
	if err != nil {
		f.add(fault, "journals", "%v: name another directory (guestwire-agent -dir)", err)
		return
	}
	dir.Close()
	defer above.RemoveAll(filepath.Base(dir.Name()))
	ns, end, err := newNamespace()
	switch {
	case errors.Is(err, errNoNamespace): // which a setup does not need
		f.add(warning, "bindings", "not tried: %v: with -own and -nic, doctor plans the NIC of a container", err)
		return
	case err != nil:
		f.add(fault, "bindings", "every setup that makes a tap fails here: %v", err)
		return
	}
	defer end()
	nic := phase1.NIC{NetNS: ns, Name: "eth0", Dir: filepath.Join(above.Name(), filepath.Base(dir.Name()), "journals")}
	for _, b := range tried {
		record, err := nic.Setup(ctx, infra.Spec{Binding: b, Owner: owner})
		if err == nil {
			err = nic.Teardown(ctx, phase1.TeardownOptions{CutOff: true})
		}
		if err != nil {
			f.add(fault, string(b.Kind()), "%s", reason(nic.Name, err))
			if errors.Is(err, os.ErrPermission) {
				return // of the owner, and the same with each binding
			}
			continue
		}
		f.add(ok, string(b.Kind()), "wired a NIC of a namespace of its own, and took it down")
		f.lost(string(b.Kind()), record)
	}
	if o.Device.Driver == "qemu" {
		return
	}
	vhost := infra.Spec{Binding: infra.Redirect{}, Owner: owner, Device: cache.Device{Driver: "vhost"}}
	switch _, err := nic.Plan(ctx, vhost); {
	case err == nil:
		f.add(ok, "vhost", "the launcher may use vhost")
	case o.Device.Driver == "vhost":
		f.add(fault, "vhost", "%s", reason(nic.Name, err))
	default:
		f.add(warning, "vhost", "%s", reason(nic.Name, err))
	}
}

// reason is the text of an error about a NIC without the call that doctor made.
func reason(nic string, err error) string {
	text := err.Error()
	if _, after, found := strings.Cut(text, " "+nic+": "); found {
		return after
	}
	return text
}

// nic looks at the NIC that is named: how it is wired, or how it would be.
func (f *findings) nic(ctx context.Context, o *options) {
	report, err := o.Status(ctx)
	switch {
	case errors.Is(err, phase1.ErrNotWired) && !errors.Is(err, phase1.ErrHeld):
		f.plan(ctx, o)
		f.managers(o)
		return
	case err != nil:
		f.add(fault, o.Name, "%s", reason(o.Name, err))
		return
	case report.Drift != nil:
		for _, d := range report.Drift.Differs {
			switch {
			case d.Way == "" && len(report.Drift.Repair) > 0:
				d.Way = o.repairCall() + " repairs it"
			case d.Way != "" && d.Grave:
				d.Way += ", then " + o.repairCall()
			}
			f.add(fault, o.Name, "%v", d)
		}
		f.managers(o)
	default:
		f.add(ok, o.Name, "wired by %s, as recorded, MTU %d", report.Binding, report.Record.MTU)
	}
	f.lost(o.Name, report.Record)
	printAttached(func(name, format string, args ...any) {
		level := ok
		if strings.HasPrefix(format, "none") {
			level = warning
		}
		f.add(level, name, format, args...)
	}, &report.Counters)
	for _, d := range report.Drops {
		if d.Packets > 0 && !d.Expected {
			f.add(warning, o.Name, "dropped %s: %s, %s: guestwire-agent drops shows them", count(d.Packets, "packet"), d.Reason, d.Meaning)
		}
	}
}

// linkManagers are programs that configure each link they see, by the names of their processes (proc_pid_comm(5)).
var linkManagers = []string{"NetworkManager", "connmand", "dhcpcd", "systemd-network"}

// managers names the processes of the NIC's namespace that may change the wiring. A process whose namespace root may
// not see is left out.
func (f *findings) managers(o *options) {
	path := "/proc/thread-self/ns/net"
	if o.NetNS != nil {
		path = fmt.Sprintf("/proc/self/fd/%d", o.NetNS.Fd())
	}
	namespace, err := os.Stat(path)
	if err != nil {
		f.add(warning, "managers", "not looked for: %v", err)
		return
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is right
	for _, file := range processes {
		text, err := os.ReadFile(file)
		name := strings.TrimSpace(string(text))
		if err != nil || !slices.Contains(linkManagers, name) {
			continue
		}
		dir := filepath.Dir(file)
		if of, err := os.Stat(dir + "/ns/net"); err == nil && os.SameFile(of, namespace) {
			f.add(warning, "managers", "%s (process %s) configures links of this namespace: keep it off %s and %[3]s-*, by the lines in docs/how-to/troubleshooting.md, "+
				"\"Other managers of links\", then guestwire-agent setup", name, filepath.Base(dir), o.Name)
		}
	}
}

func (f *findings) plan(ctx context.Context, o *options) {
	spec := o.Spec
	if spec.Binding == nil {
		spec.Binding = infra.Auto{}
	}
	if spec.Owner == (infra.Owner{}) {
		spec.Owner.Root = true
	}
	preview, err := o.Plan(ctx, spec)
	if err != nil {
		f.add(fault, o.Name, "%s", reason(o.Name, err))
		return
	}
	f.add(ok, o.Name, "not wired; %s can wire it, MTU %d", preview.Record.Binding, preview.Record.MTU)
	for _, r := range preview.Refused {
		f.add(warning, o.Name, "not %s: %s", r.Binding, r.Reason)
	}
	f.lost(o.Name, preview.Record)
}

// lost adds what the guest of a record does not get, and what Setup warns of.
func (f *findings) lost(subject string, r cache.Record) {
	for _, l := range r.Losses {
		f.add(warning, subject, "lost: %v", l)
	}
	f.warnings(subject, r)
}

// warnings adds what Setup warns of, and where nobody listens to what the guest opens.
func (f *findings) warnings(subject string, r cache.Record) {
	for _, w := range r.Warnings {
		f.add(warning, subject, "%s", w)
	}
}

// errNoNamespace says that doctor could not make a namespace.
var errNoNamespace = errors.New("a network namespace of its own needs CAP_SYS_ADMIN")

// newNamespace makes a network namespace that ends with end, and in it the NIC eth0 with addresses: a tap, as that
// needs nothing that a guest's tap does not need.
func newNamespace() (ns *os.File, end func(), err error) {
	result, done := make(chan error), make(chan struct{})
	var nic int
	onThread := func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		err := func() error {
			device, err := openTun() // also where no namespace can be made
			if err != nil {
				return err
			}
			unix.Close(device)
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("%w: %w", errNoNamespace, err)
			}
			if ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
				return err
			}
			nic, err = newNIC()
			return err
		}()
		result <- err
	}
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread cannot end: the other goroutine gets another one
			go onThread()
			<-done
			runtime.UnlockOSThread()
			return
		}
		onThread()
	}()
	if err := <-result; err != nil {
		if ns != nil {
			ns.Close()
		}
		return nil, nil, err
	}
	<-done
	return ns, func() {
		unix.Close(nic)
		ns.Close()
	}, nil
}

// openTun opens the device of taps, for the calling thread's namespace.
func openTun() (fd int, err error) {
	const device = "/dev/net/tun"
	var at unix.Stat_t
	if err := unix.Stat(device, &at); err == nil && (at.Mode&unix.S_IFMT != unix.S_IFCHR || at.Rdev != unix.Mkdev(10, 200)) {
		kinds := map[uint32]string{unix.S_IFREG: "a regular file", unix.S_IFDIR: "a directory", unix.S_IFCHR: "another device"}
		return -1, fmt.Errorf("%s is %s: rm -d %[1]s; mknod -m 666 %[1]s c 10 200 (in a container, --device %[1]s)",
			device, cmp.Or(kinds[at.Mode&unix.S_IFMT], "no device"))
	}
	if fd, err = unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open %s: %w (modprobe tun; in a container, --device %[1]s)", device, err)
	}
	return fd, nil
}

// newNIC makes eth0 in the calling thread's namespace. It is there as long as the file is open.
func newNIC() (fd int, err error) {
	if fd, err = openTun(); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	ifr, err := unix.NewIfreq("eth0")
	if err != nil {
		return fd, err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fd, fmt.Errorf("a tap: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fd, err
	}
	defer unix.Close(s)
	for _, set := range []struct {
		request uint
		address string
	}{{unix.SIOCSIFADDR, "192.0.2.2"}, {unix.SIOCSIFNETMASK, "255.255.255.0"}} {
		address := netip.MustParseAddr(set.address).As4()
		if err := ifr.SetInet4Addr(address[:]); err != nil {
			return fd, err
		}
		if err := unix.IoctlIfreq(s, set.request, ifr); err != nil {
			return fd, fmt.Errorf("address of a NIC: %w", err)
		}
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFINDEX, ifr); err != nil {
		return fd, err
	}
	in6 := struct { // struct in6_ifreq of linux/ipv6.h
		address [16]byte
		length  uint32
		link    int32
	}{netip.MustParseAddr("2001:db8::2").As16(), 64, int32(ifr.Uint32())}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fd, fmt.Errorf("start a NIC: %w", err)
	}
	s6, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fd, nil // a machine without IPv6
	}
	defer unix.Close(s6)
	// Where IPv6 is switched off for new links, the bindings are tried with IPv4 alone, as a NIC would be wired there.
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(s6), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&in6)))
	return fd, nil
}
