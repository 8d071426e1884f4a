package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/guestwire/guestwire/domain/cloudhypervisor"
	"github.com/guestwire/guestwire/domain/firecracker"
)

// The VMMs that are looked for in PATH.
const (
	Firecracker     = "firecracker"
	CloudHypervisor = "cloud-hypervisor"
)

// BootFirecracker boots a guest of BootClients under Firecracker. A Firecracker before 1.16 gets no MTU, which it does
// not know.
func BootFirecracker(ctx context.Context, cfg Config, nic *firecracker.NetworkInterface) (*Guest, error) {
	version, err := exec.Command(Firecracker, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", Firecracker, err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(version), "Firecracker v%d.%d", &major, &minor); err != nil {
		return nil, fmt.Errorf("%s --version: %q: %w", Firecracker, version, err)
	}
	if major == 1 && minor < 16 {
		old := *nic
		old.MTU, nic = 0, &old
	}
	return bootOnTerminal(ctx, cfg, func(g *Guest, kernel string) ([]string, error) {
		type object map[string]any
		config, err := json.MarshalIndent(object{
			"boot-source":        object{"kernel_image_path": kernel, "initrd_path": g.initramfs(), "boot_args": commandLine(cfg)},
			"drives":             []object{},
			"machine-config":     object{"vcpu_count": cfg.cpus(), "mem_size_mib": Memory},
			"network-interfaces": []any{nic},
		}, "", "  ")
		if err != nil {
			return nil, err
		}
		file := filepath.Join(g.dir, "config.json")
		return []string{Firecracker, "--no-api", "--level", "Error", "--config-file", file}, os.WriteFile(file, config, 0o644)
	})
}

// BootCloudHypervisor boots a guest of BootClients under Cloud Hypervisor.
func BootCloudHypervisor(ctx context.Context, cfg Config, nic *cloudhypervisor.Net) (*Guest, error) {
	return bootOnTerminal(ctx, cfg, func(g *Guest, kernel string) ([]string, error) {
		return []string{
			CloudHypervisor, "--kernel", kernel, "--initramfs", g.initramfs(), "--cmdline", commandLine(cfg),
			"--cpus", "boot=" + strconv.Itoa(cfg.cpus()), "--memory", fmt.Sprintf("size=%dM", Memory),
			"--serial", "tty", "--console", "off", "--net", nic.Arg(),
		}, nil
	})
}

// bootOnTerminal boots a guest by a VMM whose standard input and output are the console. line returns the VMM's command
// line.
func bootOnTerminal(ctx context.Context, cfg Config, line func(g *Guest, kernel string) ([]string, error)) (*Guest, error) {
	cfg.Boot, cfg.terminal = BootClients, true
	kernel, err := kernelFile(cfg.Boot)
	if err != nil {
		return nil, err
	}
	g, err := newGuest(cfg)
	if err != nil {
		return nil, err
	}
	command, err := line(g, kernel)
	if err != nil {
		return nil, errors.Join(err, g.terminal.Close(), g.Destroy())
	}
	if err := g.start(cfg, nil, command...); err != nil {
		return nil, errors.Join(err, g.Destroy())
	}
	if err := g.waitReady(ctx, cfg); err != nil {
		return nil, err
	}
	return g, nil
}
