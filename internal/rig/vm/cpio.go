package vm

import (
	"fmt"
	"io"
	"path"
)

// archive writes a cpio archive in the format newc, which the kernel accepts as an initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w     io.Writer
	inode int
	err   error // the first error; nothing is written after it
}

// Modes, as in inode(7).
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
	modeChar = 0o020000
)

func (a *archive) dir(name string) { a.entry(name, modeDir|0o755, nil, 0, 0) }
func (a *archive) file(name string, perm uint32, data []byte) {
	a.entry(name, modeFile|perm, data, 0, 0)
}
func (a *archive) symlink(name, target string) { a.entry(name, modeLink|0o777, []byte(target), 0, 0) }
func (a *archive) device(name string, major, minor int) {
	a.entry(name, modeChar|0o600, nil, major, minor)
}

// close ends the archive and returns the first error.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil, 0, 0)
	return a.err
}

func (a *archive) entry(name string, mode uint32, data []byte, major, minor int) {
	a.inode++
	if mode != 0 {
		name = path.Clean(name)
	}
	const links, owner, group, mtime, devMajor, devMinor, check = 1, 0, 0, 0, 0, 0, 0
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inode, mode, owner, group, links, mtime, len(data), devMajor, devMinor, major, minor, len(name)+1, check, name)
	a.padded([]byte(header))
	a.padded(data)
}

// padded writes data, padded to a multiple of 4 octets, where the next part must start.
func (a *archive) padded(data []byte) {
	if a.err != nil {
		return
	}
	if _, a.err = a.w.Write(data); a.err != nil {
		return
	}
	_, a.err = a.w.Write(make([]byte, -len(data)&3))
}
