package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/guestwire/guestwire/internal/rig/initramfs"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// bootModules are what it takes to reach this machine's files and to talk to it; the rest is loaded from there. Their
// dependencies come on top. The network cards' have to be among them, as the kernel does not ask for them.
var bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "e1000e", "virtio_net"}

// kernel is an unpacked kernel package.
type kernel struct {
	image     string
	moduleDir string // .../lib/modules/RELEASE
}

// findKernel finds the one that install.sh left in a directory of the cache.
func findKernel(cached string) (kernel, error) {
	pattern := unpacked.Path(cached, "lib/modules/*/modules.dep")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return kernel{}, fmt.Errorf("%s: %w", pattern, err)
	}
	if len(found) == 0 {
		return kernel{}, fmt.Errorf("%s: %w", pattern, os.ErrNotExist)
	}
	dir := filepath.Dir(found[len(found)-1])
	image := unpacked.Path(cached, "boot", "vmlinux-"+filepath.Base(dir))
	if _, err := os.Stat(image); err != nil {
		return kernel{}, err
	}
	return kernel{image: image, moduleDir: dir}, nil
}

// archive packs this program as /init, the boot modules and the task.
func (k kernel) archive(t task) ([]byte, error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	// Nothing in the archive could load it.
	if bytes.Contains(self[:min(len(self), 4096)], []byte("/ld-linux")) {
		return nil, errors.New("stockkernel is linked dynamically: build it with CGO_ENABLED=0 and without -race")
	}
	files, err := initramfs.Modules(k.moduleDir, bootModules...)
	if err != nil {
		return nil, err
	}
	a := initramfs.Archive{}
	a.File("init", 0o755, self)
	a.Dir("dev")
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(k.moduleDir, name))
		if err != nil {
			return nil, err
		}
		name = filepath.Base(name)
		a.File(name, 0o644, b)
		t.Modules = append(t.Modules, "/"+name)
	}
	b, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("task: %w", err)
	}
	a.File(taskFile[1:], 0o600, b)
	a.Close()
	return a.Bytes(), nil
}
