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
	"path/filepath"
	"strings"
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
