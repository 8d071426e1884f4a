// Package vm boots real guests on taps, for tests and the demo: Linux with real DHCP clients, Linux with the kernel's
// own DHCP client, or the firmware's network boot. The guests run under an unprivileged libvirt or under QEMU alone,
// emulated if the caller does not ask for KVM, or under Firecracker or Cloud Hypervisor, which need KVM. install.sh
// installs what the package needs, except these two.
package vm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// TCP ports that the guest serves, by IPv4 and IPv6.
const (
	// EchoPort echoes what it receives.
	EchoPort = 7
	// AnswerPort sends a line for ReadAnswer and closes.
	AnswerPort = 8000
)

// Boot is the system that a guest boots.
type Boot int

const (
	// BootClients is Debian's kernel, with DHCP clients in user space on every NIC.
	BootClients Boot = iota
	// BootAutoconf is a kernel that configures eth0 itself before the first process: by DHCPv4
	// (ip=dhcp) and by router advertisements. The host name is that of the lease. Lease4 and Lease6 do
	// not work.
	BootAutoconf
	// BootNetworkd is Debian's kernel with systemd-networkd, which configures eth0 with DHCP, router advertisements and a
	// stable-privacy link-local address (RFC 7217). Lease4 and Lease6 do not work. Its log is /run/manager.
	BootNetworkd
	// BootNetworkManager is the same with NetworkManager and its default settings.
	BootNetworkManager
	// BootCloudInit is Debian's kernel with Debian's cloud-init, which reads the disk of Config.Seed and writes for
	// netplan. Netplan's generator makes files of systemd-networkd, which configures the network. There is no systemd, no
	// udev and no DHCP client. The logs are /run/manager and /run/cloud-init.out.
	BootCloudInit
	// BootNetwork boots from the network, by the ROM of the first NIC. The guest is returned as soon as
	// the VMM runs. Console has the firmware's output; Run does not work.
	BootNetwork
	// BootUEFI is BootNetwork by Debian's OVMF, which tries TFTP and HTTP by IPv4 and IPv6. For BootQEMU.
	BootUEFI
)

// hasSystem reports whether the guest boots a system of this package, not what the network has.
func (b Boot) hasSystem() bool { return b < BootNetwork }

// Firmware, relative to the cache.
const (
	uefiCode  = "firmware/usr/share/OVMF/OVMF_CODE_4M.fd"
	uefiVars  = "firmware/usr/share/OVMF/OVMF_VARS_4M.fd"
	grubImage = "firmware/usr/lib/grub/x86_64-efi/monolithic/grubnetx64.efi"
)

// GRUB returns Debian's GRUB for UEFI's network boot. It fetches grub/grub.cfg from where it comes.
func GRUB() ([]byte, error) { return os.ReadFile(unpacked.Path(grubImage)) }

// Config configures a guest for BootLibvirt and BootQEMU.
type Config struct {
	// NetNS is the network namespace in which the taps are. It may be closed after the boot.
	NetNS *os.File
	// UID and GID are the user that runs the VMM without capabilities, and that owns the taps. See
	// LibvirtUser.
	UID, GID int
	// Name is the guest's host name and the domain's name; empty: guest.
	Name string
	// Boot is the system that the guest boots.
	Boot Boot
	// Networkd are the files of /etc/systemd/network, for BootNetworkd; nil: one that asks DHCP and routers on eth0.
	Networkd map[string]string
	// Seed are the files of the NoCloud disk, for BootCloudInit.
	Seed map[string]string
	// Program is a program of this machine, which the guest has in /bin; empty: none.
	Program string
	// CPUs is the number of virtual CPUs; 0: one.
	CPUs int
	// Files are what QEMU inherits, from descriptor 3 on, under BootQEMU.
	Files []*os.File
	// Launcher is the start of a command line that ends with QEMU's, for BootQEMU: a program that runs QEMU.
	Launcher []string
	// PlugPorts is the number of devices that can be attached while the guest of BootLibvirt runs.
	PlugPorts int
	// KVM has KVM run the guest of BootQEMU, which is emulated otherwise.
	KVM bool
	// terminal: the VMM gets its console as standard input and output.
	terminal bool
	// Backport selects the libvirt of Debian's backports, which supports passt, and Debian 12's does not; or under
	// BootQEMU the QEMU of them. On Debian 13 the installed ones are as new, and run.
	Backport bool
	// VhostUser has the guest's memory shared, and selects the libvirt and the QEMU of Debian's backports and Debian
	// 13's passt.
	VhostUser bool
}

// Debian12 reports whether this machine's programs are those of Debian 12.
var Debian12 = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/etc/os-release")
	return err == nil && strings.Contains(string(text), `VERSION_ID="12"`)
})

// unpacked reports whether the guest needs newer programs than those that are installed.
func (c Config) unpacked() bool { return (c.Backport || c.VhostUser) && Debian12() }

func (c Config) name() string {
	if c.Name == "" {
		return "guest"
	}
	return c.Name
}

func (c Config) cpus() int { return max(c.CPUs, 1) }

// Memory is a guest's memory, in MiB.
const Memory = 256

// Guest is a running guest. The caller must call Destroy.
type Guest struct {
	name    string
	dir     string
	console *console
	// terminal is for the VMM, under Config.terminal.
	terminal *os.File
	vmm      *process
	// virsh runs a command of virsh(1); nil: the guest is under QEMU alone.
	virsh func(ctx context.Context, args ...string) (string, error)
	// created: libvirt has started the guest.
	created bool
}

// LibvirtUser returns the user that runs the guests of Debian's libvirt.
func LibvirtUser() (uid, gid int, err error) {
	u, err := user.Lookup("libvirt-qemu")
	if err != nil {
		return 0, 0, fmt.Errorf("libvirt's user: %w", err)
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		return 0, 0, fmt.Errorf("libvirt's user: %w", err)
	}
	gid, err = strconv.Atoi(u.Gid)
	if err != nil {
		return 0, 0, fmt.Errorf("libvirt's user: %w", err)
	}
	return uid, gid, nil
}

// Missing returns an error if this machine cannot boot a guest, because root, a program or a file of install.sh is
// missing. A test may skip then.
func Missing() error {
	var missing []error
	if os.Geteuid() != 0 {
		missing = append(missing, errors.New("not root"))
	}
	for _, program := range []string{"qemu-system-x86_64", "libvirtd", "virsh", "passt", "setpriv", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, err)
		}
	}
	for _, file := range []string{"kernel/lib/modules", autoconfKernel, "busybox/bin/busybox", "dhclient/sbin/dhclient", "libvirt/usr/sbin/libvirtd", backportVMM, seedMaker, uefiCode, uefiVars, grubImage} {
		if _, err := os.Stat(unpacked.Path(file)); err != nil {
			missing = append(missing, err)
		}
	}
	for _, m := range managers {
		for file := range m.programs {
			if !filepath.IsAbs(file) {
				file = unpacked.Path(file)
			}
			if _, err := os.Stat(file); err != nil {
				missing = append(missing, err)
			}
		}
	}
	if _, err := kernelFile(BootClients); err != nil {
		missing = append(missing, err)
	}
	if _, err := os.Stat(tunDevice); err != nil {
		missing = append(missing, err)
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("no guest can be booted here, internal/rig/vm/install.sh brings what it needs: %w", errors.Join(missing...))
}

const tunDevice = "/dev/net/tun"

// autoconfKernel is the kernel of BootAutoconf, relative to the cache.
const autoconfKernel = "autoconf/vmlinuz"

// kernelFile returns the kernel's path. Debian's kernel is decompressed, which halves the time of a boot. install.sh
// unpacks one package, so there is exactly one.
func kernelFile(boot Boot) (string, error) {
	if boot == BootAutoconf {
		return unpacked.Path(autoconfKernel), nil
	}
	pattern := unpacked.Path("kernel/boot/vmlinux-*")
	files, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("kernel %s: %d files, want 1: remove %s and run internal/rig/vm/install.sh",
			pattern, len(files), unpacked.Path("kernel"))
	}
	return files[0], nil
}

// commandLine returns the kernel's command line.
func commandLine(cfg Config) string {
	line := "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check 8250.nr_uarts=1 net.ifnames=0 "
	if cfg.Boot == BootAutoconf {
		return line + "ip=:::::eth0:dhcp"
	}
	if m, ok := managers[cfg.Boot]; ok {
		line += "guestwire.manager=" + m.name + " "
	}
	return line + "guestwire.name=" + cfg.name()
}

// newGuest creates a guest's directory, owned by the VMM's user, with initramfs and console.
func newGuest(cfg Config) (*Guest, error) {
	if cfg.NetNS == nil {
		return nil, errors.New("guest without a network namespace: set NetNS")
	}
	if cfg.UID == 0 {
		return nil, errors.New("guest run by root: set UID to the taps' owner")
	}
	dir, err := os.MkdirTemp("", "guestwire-vm-") // a short name: the path of a Unix socket has at most 107 characters
	if err != nil {
		return nil, err
	}
	g := &Guest{name: cfg.name(), dir: dir}
	if err := g.writeFiles(cfg); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return g, nil
}

func (g *Guest) writeFiles(cfg Config) error {
	if err := os.Chown(g.dir, cfg.UID, cfg.GID); err != nil {
		return err
	}
	var err error
	if cfg.VhostUser && cfg.unpacked() {
		if err := g.writePasst(); err != nil {
			return err
		}
	}
	if cfg.Boot == BootUEFI {
		if err := copyFile(g.uefiVars(), unpacked.Path(uefiVars), cfg.UID, cfg.GID); err != nil {
			return err
		}
	}
	if cfg.Boot.hasSystem() {
		if err = writeImage(g.initramfs(), unpacked.Path(), cfg); err != nil {
			return err
		}
	}
	if cfg.Seed != nil {
		if err = writeSeed(g.seed(), cfg.Seed); err != nil {
			return err
		}
	}
	if cfg.terminal {
		g.console, g.terminal, err = openTerminal()
		return err
	}
	g.console, err = listenConsole(filepath.Join(g.dir, "console"), cfg.UID, cfg.GID)
	return err
}

// programs is a directory in which the VMM finds programs first.
func (g *Guest) programs() string { return filepath.Join(g.dir, "bin") }

// passtScript runs Debian 13's passt in its root, by the C library of that root.
const passtScript = `#!/bin/sh
exec ROOT/lib64/ld-linux-x86-64.so.2 --library-path ROOT/lib/x86_64-linux-gnu ROOT/bin/passt "$@"
`

func (g *Guest) writePasst() error {
	if err := os.Mkdir(g.programs(), 0o755); err != nil {
		return err
	}
	text := strings.ReplaceAll(passtScript, "ROOT", unpacked.Path("debian13/usr"))
	return os.WriteFile(filepath.Join(g.programs(), "passt"), []byte(text), 0o755)
}

func (g *Guest) seed() string { return filepath.Join(g.dir, "seed.iso") }

func (g *Guest) uefiVars() string { return filepath.Join(g.dir, "vars.fd") }

// copyFile makes a copy for the user.
func copyFile(to, from string, uid, gid int) error {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		return err
	}
	return os.Chown(to, uid, gid)
}

func (g *Guest) initramfs() string { return filepath.Join(g.dir, "initramfs") }

// waitReady waits until the guest accepts commands. On error it destroys the guest.
func (g *Guest) waitReady(ctx context.Context, cfg Config) error {
	if !cfg.Boot.hasSystem() {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-g.vmm.done:
			cancel(errEnded)
		case <-ctx.Done():
		}
	}()
	err := g.console.waitFor(ctx, "guestwire: ready\n")
	if err == nil {
		return nil
	}
	err = fmt.Errorf("boot of guest %s: %w; console: %q; VMM: %q", g.name, err, tail(g.console.text()), tail(g.vmm.log()))
	return errors.Join(err, g.Destroy())
}

func tail(text string) string { return text[max(0, len(text)-2000):] }

// Console returns all output of the guest's console.
func (g *Guest) Console() string { return g.console.text() }

// Run runs a line of shell in the guest and returns its output and standard error. One command runs at a time. The
// error is an *ExitError if the command failed. If ctx ends before the command, the command continues in the guest, and
// the next Run waits for its end.
func (g *Guest) Run(ctx context.Context, command string) (string, error) {
	out, err := g.console.run(ctx, command)
	if err != nil {
		return out, fmt.Errorf("guest %s: %s: %w", g.name, command, err)
	}
	return out, nil
}

// ExitError means that a command failed in the guest.
type ExitError struct {
	Code   int
	Output string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit code %d: %s", e.Code, strings.TrimSpace(e.Output))
}

// Until repeats a line of shell until it succeeds, and returns its last output.
func (g *Guest) Until(ctx context.Context, command string) (string, error) {
	for {
		out, err := g.Run(ctx, command)
		var failed *ExitError
		if !errors.As(err, &failed) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, errors.Join(ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Lease4 waits until the guest has applied a DHCPv4 lease, and returns the variables that udhcpc(8) passes to its
// script: ip, mask (the prefix length), router, staticroutes, mtu, dns, domain, search, hostname, serverid, siaddr,
// lease, ntpsrv. Variables that the server did not send are missing.
func (g *Guest) Lease4(ctx context.Context, link string) (map[string]string, error) {
	return g.lease(ctx, "/run/lease4."+link, "/run/udhcpc."+link)
}

// Lease6 waits until the guest has applied a DHCPv6 lease and duplicate address detection has passed. It returns the
// variables of dhclient-script(8) without their prefix new_: ip6_address, ip6_prefixlen, max_life, preferred_life,
// dhcp6_name_servers, dhcp6_domain_search, dhcp6_server_id.
func (g *Guest) Lease6(ctx context.Context, link string) (map[string]string, error) {
	return g.lease(ctx, "/run/lease6."+link, "/run/dhclient."+link)
}

func (g *Guest) lease(ctx context.Context, file, log string) (map[string]string, error) {
	out, err := g.Until(ctx, fmt.Sprintf("test -e %[1]s && cat %[1]s", file))
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		said, logErr := g.Run(ctx, "tail -n 40 "+log)
		return nil, errors.Join(fmt.Errorf("%w; the client said: %s", err, said), logErr)
	}
	lease := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			return nil, fmt.Errorf("guest %s: %s: line %q", g.name, file, line)
		}
		lease[key] = value
	}
	return lease, nil
}

// Ping sends an echo request each second from the guest until one is answered or ctx is done.
func (g *Guest) Ping(ctx context.Context, to netip.Addr) error {
	program := "ping"
	if to.Is6() {
		program = "ping6"
	}
	_, err := g.Until(ctx, fmt.Sprintf("%s -c 1 -W 1 %v", program, to))
	return err
}

// Report returns leases, addresses, routes and resolv.conf of the guest, as text for a person.
func (g *Guest) Report(ctx context.Context) (string, error) { return g.Run(ctx, "/bin/report") }

// Ended waits until the VMM has ended by itself, and returns its status and its output.
func (g *Guest) Ended(ctx context.Context) (status int, output string, err error) {
	select {
	case <-g.vmm.done:
		return g.vmm.cmd.ProcessState.ExitCode(), g.vmm.log(), nil
	case <-ctx.Done():
		return 0, g.vmm.log(), ctx.Err()
	}
}

// destroyTimeout is how long libvirt may take to end a guest. Then the guest is killed.
const destroyTimeout = 20 * time.Second

// Destroy ends the guest and all processes that were started for it. A second call does nothing. If libvirt does not
// end the guest, Destroy kills it and returns an error.
func (g *Guest) Destroy() error {
	if g.dir == "" {
		return nil
	}
	var errs []error
	if g.created && !g.console.hasEnded() {
		ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
		defer cancel()
		_, err := g.virsh(ctx, "destroy", g.name)
		errs = append(errs, err)
	}
	if g.vmm != nil {
		errs = append(errs, g.vmm.kill())
	}
	errs = append(errs, g.console.close(), os.RemoveAll(g.dir))
	g.dir = ""
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end of guest %s: %w", g.name, err)
	}
	return nil
}
