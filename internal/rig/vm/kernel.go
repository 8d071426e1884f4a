package vm

import (
	"fmt"
	"path/filepath"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

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
