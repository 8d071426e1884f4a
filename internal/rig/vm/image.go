package vm

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/guestwire/guestwire/internal/rig/initramfs"
)

// scripts run in the guest.
//
//go:embed guest
var scripts embed.FS

// The guest's drivers. A machine without PCI loads mmioDrivers after virtio's. The others are loaded only if a device
// has no driver after virtio's are loaded.
var (
	mmioDrivers   = []string{"virtio_mmio"}
	virtioDrivers = []string{"virtio_pci", "virtio_net"}
	otherDrivers  = []string{"e1000", "e1000e", "igb", "igbvf", "8139cp", "8139too", "vmxnet3", "pcnet32", "ne2k-pci"}
)

// writeImage writes the guest's initramfs, about 16 MiB: busybox, ISC's dhclient for DHCPv6 (Debian's busybox has no
// DHCPv6 client), iproute2, the network drivers and the scripts of this package, and what the boot needs too.
func writeImage(file, cache string, cfg Config) error {
	a := &initramfs.Archive{}
	for _, dir := range []string{"bin", "dev", "etc", "lib", "lib64", "modules", "proc", "run", "sbin", "sys", "tmp", "var", "var/lib", "var/lib/dhcp", "var/log"} {
		a.Dir(dir)
	}
	a.Device("dev/console", 5, 1)

	busybox, err := os.ReadFile(filepath.Join(cache, "busybox/bin/busybox"))
	if err != nil {
		return fmt.Errorf("guest's busybox: %w", err)
	}
	a.File("bin/busybox", 0o755, busybox)
	for _, applet := range []string{"sh", "cat", "hostname", "mount", "umount"} {
		a.Symlink("bin/"+applet, "busybox")
	}
	programs := []program{
		{filepath.Join(cache, "dhclient/sbin/dhclient"), "sbin/dhclient"},
		{"/sbin/ip", "sbin/ip"},
	}
	if cfg.Program != "" {
		programs = append(programs, program{cfg.Program, "bin/" + filepath.Base(cfg.Program)})
	}
	m := managers[cfg.Boot]
	if cfg.Networkd != nil {
		m = m.with(cfg.Networkd)
	}
	for from, to := range m.programs {
		if !filepath.IsAbs(from) {
			from = filepath.Join(cache, from)
		}
		programs = append(programs, program{from, to})
	}
	libraries := map[string]bool{}
	for _, p := range programs {
		data, err := os.ReadFile(p.from)
		if err != nil {
			return fmt.Errorf("guest's %s: %w", p.to, err)
		}
		a.File(p.to, 0o755, data)
		if err := addLibraries(a, libraries, p.from, m.libraries(cache)); err != nil {
			return fmt.Errorf("guest's %s: %w", p.to, err)
		}
	}
	m.addFiles(a)
	for _, tree := range m.trees {
		if err := addTree(a, libraries, cache, tree, m.libraries(cache)); err != nil {
			return fmt.Errorf("guest's %s: %w", tree, err)
		}
	}
	if err := addModules(a, filepath.Join(cache, "kernel/lib/modules"), m.drivers); err != nil {
		return err
	}
	if err := addScripts(a); err != nil {
		return err
	}
	a.Close()
	return os.WriteFile(file, a.Bytes(), 0o644)
}

// program is a file of this machine, and where it is in the guest.
type program struct{ from, to string }

func addScripts(a *initramfs.Archive) error {
	entries, err := fs.ReadDir(scripts, "guest")
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := scripts.ReadFile("guest/" + e.Name())
		if err != nil {
			return err
		}
		name := "bin/" + e.Name()
		if e.Name() == "init" {
			name = "init"
		}
		a.File(name, 0o755, data)
	}
	return nil
}

// addTree adds the files below the tree, which is a path below the cache, without its first part in the guest:
// cloudinit/usr/lib/python3 becomes usr/lib/python3. It adds the libraries of modules of Python.
func addTree(a *initramfs.Archive, done map[string]bool, cache, tree string, more []string) error {
	return filepath.WalkDir(filepath.Join(cache, tree), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(cache, path)
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(relative, "/")
		switch {
		case e.IsDir():
			a.Dir(name)
			return nil
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			a.Symlink(name, target)
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		a.File(name, 0o755, data)
		if filepath.Ext(path) == ".so" {
			return addLibraries(a, done, path, more)
		}
		return nil
	})
}

// addLibraries adds the dynamic linker and the shared libraries that ldd(1) finds for the file. It searches the
// directories more first.
func addLibraries(a *initramfs.Archive, done map[string]bool, file string, more []string) error {
	ldd := exec.Command("ldd", file)
	ldd.Env = append(os.Environ(), "LC_ALL=C", "LD_LIBRARY_PATH="+strings.Join(more, ":"))
	out, err := ldd.CombinedOutput()
	if strings.Contains(string(out), "not a dynamic executable") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%v: %w: %s", ldd.Args, err, out)
	}
	for line := range strings.Lines(string(out)) {
		// "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)", or "/lib64/ld-linux-x86-64.so.2 (0x...)"
		words := strings.Fields(line)
		name, path := words[0], words[0]
		if len(words) > 2 && words[1] == "=>" {
			name, path = "lib/"+words[0], words[2]
		}
		if path == "not" {
			return fmt.Errorf("%v: %s", ldd.Args, line)
		}
		if done[name] || !filepath.IsAbs(path) {
			continue
		}
		done[name] = true
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		a.File(strings.TrimPrefix(name, "/"), 0o755, data)
	}
	return nil
}

// addModules adds the drivers and the modules they depend on, and files that list them in loading order.
func addModules(a *initramfs.Archive, root string, more []string) error {
	found, err := filepath.Glob(filepath.Join(root, "*", "modules.dep"))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("guest's kernel modules: no modules.dep in %s", root)
	}
	dir := filepath.Dir(found[len(found)-1])
	done := map[string]bool{}
	for _, list := range []struct {
		name    string
		drivers []string
	}{{"virtio", virtioDrivers}, {"mmio", mmioDrivers}, {"others", otherDrivers}, {"more", more}} {
		files, err := initramfs.Modules(dir, list.drivers...)
		if err != nil {
			return fmt.Errorf("guest's kernel modules: %w", err)
		}
		var lines string
		for _, file := range files {
			name := initramfs.ModuleName(file)
			if done[name] {
				continue
			}
			done[name] = true
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				return fmt.Errorf("guest's kernel module %s: %w", name, err)
			}
			a.File("modules/"+name+".ko", 0o644, data)
			lines += name + "\n"
		}
		a.File("modules/"+list.name, 0o644, []byte(lines))
	}
	return nil
}
