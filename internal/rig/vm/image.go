package vm

import (
	"bytes"
	"debug/elf"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// scripts run in the guest.
//
//go:embed guest
var scripts embed.FS

// The guest's drivers. The others are loaded only if a device has no driver after virtio's are loaded.
var (
	virtioDrivers = []string{"virtio_pci", "virtio_net"}
	otherDrivers  = []string{"e1000", "e1000e", "igb", "8139cp", "8139too", "vmxnet3", "pcnet32", "ne2k-pci"}
)

// writeImage writes the guest's initramfs, about 16 MiB: busybox, ISC's dhclient for DHCPv6 (Debian's busybox has no
// DHCPv6 client), iproute2, the network drivers and the scripts of this package, and what the boot needs besides.
func writeImage(file, cache string, cfg Config) error {
	var image bytes.Buffer
	a := &archive{w: &image}
	for _, dir := range []string{"bin", "dev", "etc", "lib", "lib64", "modules", "proc", "run", "sbin", "sys", "tmp", "var", "var/lib", "var/lib/dhcp", "var/log"} {
		a.dir(dir)
	}
	a.device("dev/console", 5, 1)

	busybox, err := os.ReadFile(filepath.Join(cache, "busybox/bin/busybox"))
	if err != nil {
		return fmt.Errorf("guest's busybox: %w", err)
	}
	a.file("bin/busybox", 0o755, busybox)
	for _, applet := range []string{"sh", "cat", "hostname", "mount", "umount"} {
		a.symlink("bin/"+applet, "busybox")
	}
	programs := []program{
		{filepath.Join(cache, "dhclient/sbin/dhclient"), "sbin/dhclient"},
		{"/sbin/ip", "sbin/ip"},
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
		a.file(p.to, 0o755, data)
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
	if err := a.close(); err != nil {
		return fmt.Errorf("guest's initramfs: %w", err)
	}
	return os.WriteFile(file, image.Bytes(), 0o644)
}

// program is a file of this machine, and where it is in the guest.
type program struct{ from, to string }

func addScripts(a *archive) error {
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
		a.file(name, 0o755, data)
	}
	return nil
}

// addTree adds the files below the tree, which is a path below the cache, without its first part in the guest:
// cloudinit/usr/lib/python3 becomes usr/lib/python3. It adds the libraries of modules of Python.
func addTree(a *archive, done map[string]bool, cache, tree string, more []string) error {
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
			a.dir(name)
			return nil
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			a.symlink(name, target)
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		a.file(name, 0o755, data)
		if filepath.Ext(path) == ".so" {
			return addLibraries(a, done, path, more)
		}
		return nil
	})
}

// libraryDirs are the directories that Debian's dynamic linker searches (ld.so(8)).
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"}

// addLibraries adds the dynamic linker and the shared libraries that file needs, directly or indirectly. It searches the
// directories more first.
func addLibraries(a *archive, done map[string]bool, file string, more []string) error {
	object, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer object.Close()
	if s := object.Section(".interp"); s != nil {
		raw, err := s.Data()
		if err != nil {
			return err
		}
		if linker := string(bytes.TrimRight(raw, "\x00")); !done[linker] {
			done[linker] = true
			data, err := os.ReadFile(linker)
			if err != nil {
				return err
			}
			a.file(strings.TrimPrefix(linker, "/"), 0o755, data)
		}
	}
	needed, err := object.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range needed {
		if done[name] || strings.HasPrefix(name, "ld-linux") {
			continue
		}
		done[name] = true
		library, err := findLibrary(name, more)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(library)
		if err != nil {
			return err
		}
		a.file("lib/"+name, 0o755, data)
		if err := addLibraries(a, done, library, more); err != nil {
			return err
		}
	}
	return nil
}

func findLibrary(name string, more []string) (string, error) {
	for _, dir := range append(more, libraryDirs...) {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("shared library %s in %s: %w", name, strings.Join(libraryDirs, " and "), fs.ErrNotExist)
}

// addModules adds the drivers and the modules they depend on, and files that list them in loading order.
func addModules(a *archive, root string, more []string) error {
	files := map[string]string{} // by module
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(file) == ".ko" {
			files[moduleName(file)] = file
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("guest's kernel modules: %w", err)
	}
	done := map[string]bool{}
	for _, list := range []struct {
		name    string
		drivers []string
	}{{"virtio", virtioDrivers}, {"others", otherDrivers}, {"more", more}} {
		var order []string
		for _, driver := range list.drivers {
			if err := addModule(a, files, done, &order, moduleName(driver)); err != nil {
				return err
			}
		}
		var lines string
		for _, module := range order {
			lines += module + "\n"
		}
		a.file("modules/"+list.name, 0o644, []byte(lines))
	}
	return nil
}

// moduleName returns the kernel's name of a module's file, which has underscores instead of hyphens.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

func addModule(a *archive, files map[string]string, done map[string]bool, order *[]string, name string) error {
	if done[name] {
		return nil
	}
	done[name] = true
	depends, err := moduleDepends(files[name])
	if err != nil {
		return fmt.Errorf("guest's kernel module %s: %w", name, err)
	}
	for _, d := range depends {
		if err := addModule(a, files, done, order, moduleName(d)); err != nil {
			return err
		}
	}
	data, err := os.ReadFile(files[name])
	if err != nil {
		return fmt.Errorf("guest's kernel module %s: %w", name, err)
	}
	a.file("modules/"+name+".ko", 0o644, data)
	*order = append(*order, name)
	return nil
}

// moduleDepends returns the module's "depends", as modinfo(8) prints it.
func moduleDepends(file string) ([]string, error) {
	object, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer object.Close()
	section := object.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s: no section .modinfo", file)
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, item := range strings.Split(string(data), "\x00") {
		if list, ok := strings.CutPrefix(item, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
