// Package vm boots real guests on taps, for tests and the demo: Linux with a small userland of real
// DHCP clients, a Linux that is such a client itself, or the firmware's network boot, under an
// unprivileged libvirt or under QEMU alone, by emulation (no KVM needed). install.sh brings what it
// needs.
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
	"time"
)

// The TCP ports that the guest serves, on IPv4 and IPv6.
const (
	// EchoPort sends everything back.
	EchoPort = 7
	// AnswerPort sends a line for ReadAnswer and closes.
	AnswerPort = 8000
)

// Boot is what a guest boots.
type Boot int

const (
	// BootClients is Debian's kernel, and DHCP clients of the userland on every NIC.
	BootClients Boot = iota
	// BootAutoconf is a kernel that configures eth0 by itself, before there is a process: by
	// DHCPv4 (ip=dhcp) and by router advertisements. Its host name is what DHCP says. Lease4
	// and Lease6 wait in vain.
	BootAutoconf
	// BootNetwork is what the ROM of the first NIC gets over the network. The machine runs when
	// it is returned; Console shows what the firmware prints, Run has nobody to talk to.
	BootNetwork
)

// Config is what a guest is, whoever boots it.
type Config struct {
	// NetNS is the network namespace in which the taps are. It may be closed after the boot.
	NetNS *os.File
	// UID and GID are the user as whom the VMM runs, without any capability: the taps' owner.
	// LibvirtUser gives them.
	UID, GID int
	// Name is the guest's host name and the domain's name; empty: guest.
	Name string
	// Boot is what it boots.
	Boot Boot
	// CPUs is the number of virtual CPUs; 0: one.
	CPUs int
	// Backport has the libvirt of Debian's backports serve, which knows passt: that of Debian 12 was
	// built without it.
	Backport bool
}

func (c Config) name() string {
	if c.Name == "" {
		return "guest"
	}
	return c.Name
}

func (c Config) cpus() int { return max(c.CPUs, 1) }

// Memory is a guest's, in MiB.
const Memory = 256

// Guest is a running guest. Destroy has to be called, and leaves nothing behind.
type Guest struct {
	name    string
	dir     string
	console *console
	vmm     *process
	// virsh runs a command of virsh(1); nil: the guest is under QEMU alone.
	virsh func(ctx context.Context, args ...string) (string, error)
	// created says that libvirt has started the guest.
	created bool
}

// LibvirtUser is the user that Debian's libvirt has for its guests.
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

// Missing says what a boot lacks on this machine, or nil: root, programs, and what install.sh
// unpacks. A test that it holds up may skip.
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
	for _, file := range []string{"kernel/lib/modules", autoconfKernel, "busybox/bin/busybox", "dhclient/sbin/dhclient", "libvirt/usr/sbin/libvirtd"} {
		if _, err := os.Stat(filepath.Join(cacheDir(), file)); err != nil {
			missing = append(missing, err)
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

func cacheDir() string {
	if dir := os.Getenv("GUESTWIRE_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/guestwire"
}

// autoconfKernel is in the cache.
const autoconfKernel = "autoconf/vmlinuz"

// kernelFile is the kernel. Debian's is uncompressed, which halves the time of a boot. There is
// one, as install.sh unpacks one package.
func kernelFile(boot Boot) (string, error) {
	if boot == BootAutoconf {
		return filepath.Join(cacheDir(), autoconfKernel), nil
	}
	pattern := filepath.Join(cacheDir(), "kernel/boot/vmlinux-*")
	files, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("kernel %s: %d files, want 1: remove %s and run internal/rig/vm/install.sh",
			pattern, len(files), filepath.Join(cacheDir(), "kernel"))
	}
	return files[0], nil
}

// commandLine is the kernel's.
func commandLine(cfg Config) string {
	line := "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check 8250.nr_uarts=1 net.ifnames=0 "
	if cfg.Boot == BootAutoconf {
		return line + "ip=:::::eth0:dhcp"
	}
	return line + "guestwire.name=" + cfg.name()
}

// newGuest makes the directory of a guest, which its VMM's user owns, with initramfs and console.
func newGuest(cfg Config) (*Guest, error) {
	if cfg.NetNS == nil {
		return nil, errors.New("guest without a network namespace: set NetNS")
	}
	if cfg.UID == 0 {
		return nil, errors.New("guest run by root: set UID to the taps' owner")
	}
	dir, err := os.MkdirTemp("", "guestwire-vm-") // short: sockets' paths have at most 107 characters
	if err != nil {
		return nil, err
	}
	g := &Guest{name: cfg.name(), dir: dir}
	if err := g.fill(cfg); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return g, nil
}

func (g *Guest) fill(cfg Config) error {
	if err := os.Chown(g.dir, cfg.UID, cfg.GID); err != nil {
		return err
	}
	var err error
	if cfg.Boot != BootNetwork {
		if err = writeImage(g.initramfs(), cacheDir()); err != nil {
			return err
		}
	}
	g.console, err = listenConsole(filepath.Join(g.dir, "console"), cfg.UID, cfg.GID)
	return err
}

func (g *Guest) initramfs() string { return filepath.Join(g.dir, "initramfs") }

// ready waits until the guest takes commands. If it does not come to that, the guest is gone.
func (g *Guest) ready(ctx context.Context, cfg Config) error {
	if cfg.Boot == BootNetwork {
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

// Console is everything that the guest has printed.
func (g *Guest) Console() string { return g.console.text() }

// Run runs a line of shell in the guest and gives what it printed, standard error included. One
// runs at a time. The error is an *ExitError if the command failed. If ctx ends before the command,
// the command goes on, and the next one waits for its end.
func (g *Guest) Run(ctx context.Context, command string) (string, error) {
	out, err := g.console.run(ctx, command)
	if err != nil {
		return out, fmt.Errorf("guest %s: %s: %w", g.name, command, err)
	}
	return out, nil
}

// ExitError is a command that failed in the guest.
type ExitError struct {
	Code   int
	Output string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit code %d: %s", e.Code, strings.TrimSpace(e.Output))
}

// Until runs a line of shell again and again until it succeeds, and gives what it printed then.
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

// Lease4 waits for a DHCPv4 lease and gives it as udhcpc(8) hands it to its script: ip, mask (the
// prefix length), router, staticroutes, mtu, dns, domain, search, hostname, serverid, siaddr,
// lease, ntpsrv. What the server did not say is not in it. The guest has applied it.
func (g *Guest) Lease4(ctx context.Context, link string) (map[string]string, error) {
	return g.lease(ctx, "/run/lease4."+link, "/run/udhcpc."+link)
}

// Lease6 waits for a DHCPv6 lease and gives it as dhclient-script(8) gets it, without the prefix
// new_: ip6_address, ip6_prefixlen, max_life, preferred_life, dhcp6_name_servers,
// dhcp6_domain_search, dhcp6_server_id. The guest has applied it and found the address unused.
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

// Ping sends one echo request a second from the guest until it is answered, or ctx is done.
func (g *Guest) Ping(ctx context.Context, to netip.Addr) error {
	program := "ping"
	if to.Is6() {
		program = "ping6"
	}
	_, err := g.Until(ctx, fmt.Sprintf("%s -c 1 -W 1 %v", program, to))
	return err
}

// Report is for people: leases, addresses, routes and resolv.conf of the guest.
func (g *Guest) Report(ctx context.Context) (string, error) { return g.Run(ctx, "/bin/report") }

// destroyTimeout is how long libvirt may take to end a guest before it is killed.
const destroyTimeout = 20 * time.Second

// Destroy ends the guest at once, and everything that was started for it. Called again it does
// nothing. It is an error if libvirt did not end the guest by itself; it has ended even then.
func (g *Guest) Destroy() error {
	if g.dir == "" {
		return nil
	}
	var errs []error
	if g.created && !g.console.ended() {
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
