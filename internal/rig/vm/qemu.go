package vm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/guestwire/guestwire/cache"
)

// NIC is a guest's network device on a tap.
type NIC struct {
	// Tap is the name of an existing tap that belongs to the user.
	Tap string
	// MAC is the device's address.
	MAC cache.MAC
	// MTU is the device's MTU, in octets of IP; 0: the driver gets none.
	MTU int
	// Queues is the number of the tap's queue pairs; 0: one.
	Queues int
}

// BootQEMU boots a guest with virtio devices under QEMU without libvirt, which is faster. BootQEMU returns when the
// guest accepts commands; the guest may have no lease yet.
func BootQEMU(ctx context.Context, cfg Config, nics ...NIC) (*Guest, error) {
	kernel, err := kernelFile(cfg.Boot)
	if err != nil {
		return nil, err
	}
	g, err := newGuest(cfg)
	if err != nil {
		return nil, err
	}
	args := []string{
		"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-m", strconv.Itoa(Memory), "-smp", strconv.Itoa(cfg.cpus()),
		"-chardev", "socket,id=console,path=" + filepath.Join(g.dir, "console"), "-serial", "chardev:console",
	}
	if cfg.Boot == BootNetwork {
		args = append(args, "-machine", "graphics=off") // the firmware prints on the serial line
	} else {
		args = append(args, "-kernel", kernel, "-initrd", g.initramfs(), "-append", commandLine(cfg))
	}
	for i, nic := range nics {
		netdev := fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no", i, nic.Tap)
		device := fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%v,disable-legacy=on", i, nic.MAC)
		if cfg.Boot == BootNetwork {
			device += fmt.Sprintf(",bootindex=%d", i+1)
		} else {
			device += ",romfile="
		}
		if nic.Queues > 1 {
			netdev += fmt.Sprintf(",queues=%d", nic.Queues)
			device += fmt.Sprintf(",mq=on,vectors=%d", 2*nic.Queues+2) // QEMU's documentation: two per queue pair, control, configuration
		}
		if nic.MTU != 0 {
			device += fmt.Sprintf(",host_mtu=%d", nic.MTU)
		}
		args = append(args, "-netdev", netdev, "-device", device)
	}
	if err := g.start(cfg, nil, args...); err != nil {
		return nil, errors.Join(err, g.Destroy())
	}
	if err := g.waitReady(ctx, cfg); err != nil {
		return nil, err
	}
	return g, nil
}
