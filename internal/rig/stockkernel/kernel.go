package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// bootModules are what it takes to reach this machine's files and to talk to it; the rest is
// loaded from there. Their dependencies come on top. The network cards' have to be among them, as the kernel does not ask for them.
var bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "e1000e", "virtio_net"}

// kernel is an unpacked kernel package.
type kernel struct {
	image     string
	moduleDir string // .../lib/modules/RELEASE
}

// findKernel finds the newest one that install.sh left.
func findKernel() (kernel, error) {
	pattern := unpacked.Path("kernel/lib/modules/*/modules.dep")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return kernel{}, fmt.Errorf("%s: %w", pattern, err)
	}
	if len(found) == 0 {
		return kernel{}, fmt.Errorf("%s: %w", pattern, os.ErrNotExist)
	}
	dir := filepath.Dir(found[len(found)-1])
	image := unpacked.Path("kernel/boot/vmlinux-" + filepath.Base(dir))
	if _, err := os.Stat(image); err != nil {
		return kernel{}, err
	}
	return kernel{image: image, moduleDir: dir}, nil
}

// modules returns the files of the named modules and of all that they depend on, in the order in
// which they can be loaded, relative to the module directory.
//
// A line of modules.dep(5) is "FILE: DEPENDENCY...", all dependencies, the innermost last.
func (k kernel) modules(names []string) ([]string, error) {
	f, err := os.Open(filepath.Join(k.moduleDir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	chain := make(map[string][]string)
	s := bufio.NewScanner(f)
	for s.Scan() {
		file, deps, _ := strings.Cut(s.Text(), ":")
		files := append([]string{file}, strings.Fields(deps)...)
		slices.Reverse(files)
		chain[strings.TrimSuffix(filepath.Base(file), ".ko")] = files
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	var order []string
	for _, name := range names {
		if chain[name] == nil {
			return nil, fmt.Errorf("%s: no module %s", f.Name(), name)
		}
		for _, file := range chain[name] {
			if !slices.Contains(order, file) {
				order = append(order, file)
			}
		}
	}
	return order, nil
}

// initramfs packs this program as /init, the boot modules and the task.
func (k kernel) initramfs(t task) ([]byte, error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	// Nothing in the archive could load it.
	if bytes.Contains(self[:min(len(self), 4096)], []byte("/ld-linux")) {
		return nil, errors.New("stockkernel is linked dynamically: build it with CGO_ENABLED=0 and without -race")
	}
	files, err := k.modules(bootModules)
	if err != nil {
		return nil, err
	}
	a := archive{}
	a.add("init", 0o100755, self)
	a.add("dev", 0o040755, nil)
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(k.moduleDir, name))
		if err != nil {
			return nil, err
		}
		name = filepath.Base(name)
		a.add(name, 0o100644, b)
		t.Modules = append(t.Modules, "/"+name)
	}
	b, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("task: %w", err)
	}
	a.add(taskFile[1:], 0o100600, b)
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes(), nil
}

// archive is a cpio archive in the new ASCII format
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) add(name string, mode uint32, content []byte) {
	a.inode++
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor,
	// rdevminor, namesize, check
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
