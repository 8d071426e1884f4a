package netns

import (
	"context"
	"fmt"
	"os"
	"strconv"
)

// Held returns those of the wanted network namespaces to which a mount, a process or an open file leads, without the
// processes except, the caller's open files, and the caller's threads other than its main one. It looks as Find does in
// /proc, and at open files and other mount namespaces only for a namespace that has no other place. What the walk does
// not see does not count, such as a socket. The error is ErrNotSeen if /proc does not show the node's processes.
func Held(ctx context.Context, wanted []Identity, except []int) (held map[Identity]bool, err error) {
	if !seesNode() {
		return nil, ErrNotSeen
	}
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return nil, err
	}
	f := finder{ctx: ctx, self: self, wanted: map[file]*living{}, mounts: map[mounts]bool{}, left: map[string]bool{}}
	for _, pid := range except {
		f.left[strconv.Itoa(pid)] = true
	}
	for _, id := range wanted {
		f.wanted[file{id.Device, id.Inode}] = &living{}
	}
	if err := f.scan(); err != nil {
		return nil, fmt.Errorf("look for network namespaces: %w", err)
	}
	held = map[Identity]bool{}
	for _, id := range wanted {
		if f.wanted[file{id.Device, id.Inode}].matches(id) {
			held[id] = true
		}
	}
	return held, nil
}
