// Package initramfs writes the archive that a kernel boots from, and finds the modules that belong in it.
package initramfs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Archive is a cpio archive in the format newc (Documentation/driver-api/early-userspace/buffer-format.rst).
type Archive struct {
	bytes.Buffer
	inode int
}

// Modes, as in inode(7).
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
	modeChar = 0o020000
)

// Dir adds a directory that everybody can enter.
func (a *Archive) Dir(name string) { a.entry(name, modeDir|0o755, nil, 0, 0) }

// File adds a file.
func (a *Archive) File(name string, perm uint32, data []byte) {
	a.entry(name, modeFile|perm, data, 0, 0)
}

// Symlink adds a symbolic link.
func (a *Archive) Symlink(name, target string) { a.entry(name, modeLink|0o777, []byte(target), 0, 0) }

// Device adds a character device for root.
func (a *Archive) Device(name string, major, minor int) {
	a.entry(name, modeChar|0o600, nil, major, minor)
}

// Close ends the archive.
func (a *Archive) Close() { a.entry("TRAILER!!!", 0, nil, 0, 0) }

func (a *Archive) entry(name string, mode uint32, data []byte, major, minor int) {
	a.inode++
	name = path.Clean(name)
	const links, owner, group, mtime, devMajor, devMinor, check = 1, 0, 0, 0, 0, 0, 0
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inode, mode, owner, group, links, mtime, len(data), devMajor, devMinor, major, minor, len(name)+1, check, name)
	a.pad()
	a.Write(data)
	a.pad()
}

// pad ends a part at a multiple of 4 octets, where the next part must start.
func (a *Archive) pad() { a.Write(make([]byte, -a.Len()&3)) }

// ModuleName returns the kernel's name of a module's file, which has underscores instead of hyphens.
func ModuleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// Modules returns the files of the named modules and of all that they depend on, in the order in which they can be
// loaded, relative to the directory, which is .../lib/modules/RELEASE. What is built into the kernel has no file.
//
// A line of modules.dep(5) is "FILE: DEPENDENCY...", all dependencies, the innermost last.
func Modules(dir string, names ...string) ([]string, error) {
	f, err := os.Open(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	chain := map[string][]string{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		file, deps, _ := strings.Cut(s.Text(), ":")
		files := append([]string{file}, strings.Fields(deps)...)
		slices.Reverse(files)
		chain[ModuleName(file)] = files
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for file := range strings.FieldsSeq(string(builtin)) {
		chain[ModuleName(file)] = []string{}
	}
	var order []string
	for _, name := range names {
		files := chain[ModuleName(name)]
		if files == nil {
			return nil, fmt.Errorf("%s: no module %s", f.Name(), name)
		}
		for _, file := range files {
			if !slices.Contains(order, file) {
				order = append(order, file)
			}
		}
	}
	return order, nil
}
