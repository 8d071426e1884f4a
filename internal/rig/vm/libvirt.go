package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// BootLibvirt boots a guest under its own libvirtd, which runs as the user of cfg without capabilities
// (qemu:///session). interfaces are <interface> elements. BootLibvirt returns when the guest accepts commands; the
// guest may have no lease yet.
func BootLibvirt(ctx context.Context, cfg Config, interfaces ...string) (*Guest, error) {
	g, err := newGuest(cfg)
	if err != nil {
		return nil, err
	}
	if err := g.startUnderLibvirt(ctx, cfg, interfaces); err != nil {
		err = fmt.Errorf("guest %s: %w", g.name, err)
		return nil, errors.Join(err, g.Destroy())
	}
	if err := g.waitReady(ctx, cfg); err != nil {
		return nil, err
	}
	return g, nil
}

// startUnderLibvirt starts libvirtd, and the guest under it.
func (g *Guest) startUnderLibvirt(ctx context.Context, cfg Config, interfaces []string) error {
	if err := g.startLibvirt(ctx, cfg); err != nil {
		return err
	}
	definition, err := g.definition(cfg, interfaces)
	if err != nil {
		return err
	}
	file := filepath.Join(g.dir, "domain.xml")
	if err := os.WriteFile(file, []byte(definition), 0o644); err != nil {
		return err
	}
	if _, err := g.virsh(ctx, "create", file); err != nil {
		return err
	}
	g.created = true
	return nil
}

// Virsh runs a command of virsh(1) in the guest's libvirt, such as attach-device, and returns what it prints. The
// domain has the guest's name.
func (g *Guest) Virsh(ctx context.Context, args ...string) (string, error) {
	if g.virsh == nil {
		return "", errors.New("the guest is not under libvirt")
	}
	return g.virsh(ctx, args...)
}

// startLibvirt starts a libvirtd without guests, and sets virsh.
func (g *Guest) startLibvirt(ctx context.Context, cfg Config) error {
	conf := filepath.Join(g.dir, "libvirt")
	if err := os.Mkdir(conf, 0o755); err != nil {
		return err
	}
	if err := os.Chown(conf, cfg.UID, cfg.GID); err != nil {
		return err
	}
	// "file" avoids virtlogd, another daemon.
	if err := os.WriteFile(filepath.Join(conf, "qemu.conf"), []byte("stdio_handler = \"file\"\n"), 0o644); err != nil {
		return err
	}
	emulator := strings.Replace(emulatorScript, "QEMU", strings.Join(Config{VhostUser: cfg.VhostUser}.program(), " "), 1)
	if err := os.WriteFile(g.emulator(), []byte(emulator), 0o755); err != nil {
		return err
	}
	env := []string{"LIBVIRT_AUTOSTART=0"}
	for _, variable := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"} {
		env = append(env, variable+"="+g.dir)
	}
	program, libraries := "libvirtd", []string(nil)
	if cfg.unpacked() {
		usr := unpacked.Path("libvirt/usr")
		lib := filepath.Join(usr, "lib/x86_64-linux-gnu")
		program = filepath.Join(usr, "sbin/libvirtd")
		libraries = []string{"LD_LIBRARY_PATH=" + lib, "LIBVIRT_DRIVER_DIR=" + filepath.Join(lib, "libvirt/connection-driver")}
	}
	if err := g.start(cfg, slices.Concat(env, libraries), program); err != nil {
		return err
	}
	g.virsh = func(ctx context.Context, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "virsh", append([]string{"--quiet", "--connect", "qemu:///session"}, args...)...)
		cmd.Dir = g.dir
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(cfg.UID), Gid: uint32(cfg.GID)}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return string(out), nil
	}
	return g.vmm.waitListening(ctx, filepath.Join(conf, "libvirt-sock"))
}

func (g *Guest) emulator() string { return filepath.Join(g.dir, "emulator") }

// emulatorScript calls QEMU with the accelerator: a domain has no element for its threads.
const emulatorScript = `#!/bin/sh
for argument do
	shift
	[ "$argument" != tcg ] || argument=` + accelerator + `
	set -- "$@" "$argument"
done
exec QEMU "$@"
`

// waitListening waits until the process listens on a socket.
func (p *process) waitListening(ctx context.Context, socket string) error {
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("start of libvirt: %w: %w; it printed: %q", ctx.Err(), err, tail(p.log()))
		case <-p.done:
			return fmt.Errorf("end of libvirt: it printed: %q", tail(p.log()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// definition returns the guest's domain XML.
func (g *Guest) definition(cfg Config, interfaces []string) (string, error) {
	devices := &libvirtxml.DomainDeviceList{
		Emulator:    g.emulator(),
		Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
		Serials: []libvirtxml.DomainSerial{{
			Source: &libvirtxml.DomainChardevSource{
				UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "connect", Path: filepath.Join(g.dir, "console")},
			},
		}},
		MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
	}
	if cfg.PlugPorts > 0 { // libvirt makes no more ports than devices
		for index := range uint(1 + len(interfaces) + cfg.PlugPorts) {
			model := "pcie-root-port"
			if index == 0 {
				model = "pcie-root"
			}
			devices.Controllers = append(devices.Controllers, libvirtxml.DomainController{Type: "pci", Index: &index, Model: model})
		}
	}
	definition := &libvirtxml.Domain{
		Type:   "qemu",
		Name:   g.name,
		Memory: &libvirtxml.DomainMemory{Value: Memory, Unit: "MiB"},
		VCPU:   &libvirtxml.DomainVCPU{Value: uint(cfg.cpus())},
		OS: &libvirtxml.DomainOS{
			Type: &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"},
		},
		Features: &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		OnReboot: "destroy",
		OnCrash:  "destroy",
		Devices:  devices,
	}
	if cfg.VhostUser {
		definition.MemoryBacking = &libvirtxml.DomainMemoryBacking{
			MemorySource: &libvirtxml.DomainMemorySource{Type: "memfd"}, MemoryAccess: &libvirtxml.DomainMemoryAccess{Mode: "shared"},
		}
	}
	if cfg.Boot == BootNetwork {
		definition.OS.BIOS = &libvirtxml.DomainBIOS{UseSerial: "yes"}
	} else {
		kernel, err := kernelFile(cfg.Boot)
		if err != nil {
			return "", err
		}
		definition.OS.Kernel, definition.OS.Initrd, definition.OS.Cmdline = kernel, g.initramfs(), commandLine(cfg)
	}
	text, err := definition.Marshal()
	if err != nil {
		return "", fmt.Errorf("definition of the domain: %w", err)
	}
	// The elements are inserted as text, so that libvirt checks them and libvirtxml changes nothing.
	return strings.Replace(text, "</devices>", strings.Join(interfaces, "\n")+"</devices>", 1), nil
}

// WaitLibvirt starts a libvirtd that waits for a guest of another one (MigrateLibvirt), for a guest of that
// configuration.
func WaitLibvirt(ctx context.Context, cfg Config) (*Guest, error) {
	g, err := newGuest(cfg)
	if err != nil {
		return nil, err
	}
	if err := g.startLibvirt(ctx, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("guest %s: %w", g.name, err), g.Destroy())
	}
	return g, nil
}

// MigrateLibvirt moves the guest of BootLibvirt to the libvirtd of WaitLibvirt, by Unix sockets. The guest is paused
// there until Resume. If MigrateLibvirt fails, the guest goes on here.
//
// https://libvirt.org/migration.html#migration-over-unix-sockets
func (g *Guest) MigrateLibvirt(ctx context.Context, target *Guest) error {
	definition, err := g.virsh(ctx, "dumpxml", "--migratable", g.name)
	if err != nil {
		return err
	}
	file := filepath.Join(target.dir, "domain.xml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(definition, g.dir, target.dir)), 0o644); err != nil {
		return err
	}
	_, err = g.virsh(ctx, "migrate", "--live", "--p2p", "--suspend", "--xml", file, "--domain", g.name,
		"--desturi", "qemu+unix:///session?socket="+filepath.Join(target.dir, "libvirt", "libvirt-sock"),
		"--migrateuri", "unix://"+filepath.Join(target.dir, "migration"))
	if err != nil {
		return err
	}
	g.created, target.created = false, true
	target.console.commands = g.console.commands
	return nil
}

// Resume lets the guest of MigrateLibvirt go on.
func (g *Guest) Resume(ctx context.Context) error {
	_, err := g.virsh(ctx, "resume", g.name)
	return err
}
