package vm

import (
	"path/filepath"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// DirectBoot is what a guest of BootClients boots, for a VMM that another program starts.
type DirectBoot struct {
	// Kernel and Initramfs are files that everybody can read.
	Kernel, Initramfs string
	// CommandLine is the kernel's.
	CommandLine string
}

// NewDirectBoot writes the initramfs of a guest with that host name into the directory.
func NewDirectBoot(dir, name string) (DirectBoot, error) {
	cfg := Config{Name: name, Boot: BootClients}
	kernel, err := kernelFile(cfg.Boot)
	if err != nil {
		return DirectBoot{}, err
	}
	b := DirectBoot{Kernel: kernel, Initramfs: filepath.Join(dir, "initramfs"), CommandLine: commandLine(cfg)}
	return b, writeImage(b.Initramfs, unpacked.Path(), cfg)
}
