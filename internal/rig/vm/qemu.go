package vm

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

const vmm = "qemu-system-x86_64"

// backportVMM is that of Debian's backports, relative to the cache.
const backportVMM = "qemu/usr/bin/" + vmm

// program returns QEMU, and its first arguments. That of Debian's backports has the firmware elsewhere.
func (c Config) program() []string {
	if c.unpacked() {
		return []string{unpacked.Path(backportVMM), "-L", "/usr/share/seabios"}
	}
	return []string{vmm}
}

// accelerator runs all CPUs on one thread. With a thread for each, QEMU 7.2 may translate code while another CPU
// patches it, and the guest stops for ever, mostly at its boot.
const accelerator = "tcg,thread=single"

// acceleration returns the arguments for what runs the guest.
func (c Config) acceleration() []string {
	if c.KVM {
		// Under some nested KVMs QEMU 7.2 aborts when it sets the register of this feature.
		return []string{"-accel", "kvm", "-cpu", "host,arch-capabilities=off"}
	}
	return []string{"-accel", accelerator}
}

// PlugBus is the id of a bus for a device that is plugged while the guest of BootQEMU runs.
const PlugBus = "plug"

// BootQEMU boots a guest under QEMU without libvirt, which is faster. It returns when the guest accepts commands; the
// guest may have no lease yet.
func BootQEMU(ctx context.Context, cfg Config, nics ...*qemu.NIC) (*Guest, error) {
	g, err := launchQEMU(cfg, nics)
	if err != nil {
		return nil, err
	}
	if err := g.waitReady(ctx, cfg); err != nil {
		return nil, err
	}
	return g, nil
}

// launchQEMU starts QEMU with the arguments more in addition to those of the configuration.
func launchQEMU(cfg Config, nics []*qemu.NIC, more ...string) (*Guest, error) {
	kernel, err := kernelFile(cfg.Boot)
	if err != nil {
		return nil, err
	}
	g, err := newGuest(cfg)
	if err != nil {
		return nil, err
	}
	args := slices.Concat(cfg.Launcher, cfg.program(), cfg.acceleration(), []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35", "-m", strconv.Itoa(Memory), "-smp", strconv.Itoa(cfg.cpus()),
		"-chardev", "socket,id=console,path=" + filepath.Join(g.dir, "console"), "-serial", "chardev:console",
		"-qmp", "unix:" + g.qmpSocket() + ",server=on,wait=off", "-device", "pcie-root-port,chassis=1,id=" + PlugBus,
	})
	switch cfg.Boot {
	case BootNetwork:
		args = append(args, "-machine", "graphics=off") // the firmware prints on the serial line
	case BootUEFI:
		args = append(args, "-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+unpacked.Path(uefiCode),
			"-drive", "if=pflash,format=raw,unit=1,file="+g.uefiVars())
	default:
		args = append(args, "-kernel", kernel, "-initrd", g.initramfs(), "-append", commandLine(cfg))
	}
	if cfg.VhostUser {
		args = append(args, "-object", "memory-backend-memfd,id=ram,share=on,size="+strconv.Itoa(Memory)+"M", "-machine", "memory-backend=ram")
	}
	if cfg.Seed != nil {
		args = append(args, "-drive", "if=virtio,readonly=on,format=raw,file="+g.seed())
	}
	for _, nic := range nics {
		device, err := nic.Args()
		if err != nil {
			return nil, errors.Join(err, g.Destroy())
		}
		args = append(args, device...)
	}
	if err := g.start(cfg, nil, append(args, more...)...); err != nil {
		return nil, errors.Join(err, g.Destroy())
	}
	return g, nil
}
