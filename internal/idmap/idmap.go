// Package idmap reads which users and groups a user namespace has.
//
// [Read] takes a file of /proc, and returns the numbers with their counterparts. [Check] and [CheckOwner] refuse, as an
// error of a field, a number that this process's user namespace does not have.
package idmap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// Map are the numbers of users, or of groups, that a user namespace has (user_namespaces(7)).
type Map []idRange

type idRange struct{ inside, outside, size uint64 }

// Read reads a uid_map or gid_map of /proc.
func Read(path string) (Map, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list Map
	for line := range strings.Lines(string(text)) {
		var r idRange
		if _, err := fmt.Sscan(line, &r.inside, &r.outside, &r.size); err != nil {
			return nil, fmt.Errorf("%s: the line %q: %w", path, line, err)
		}
		list = append(list, r)
	}
	return list, nil
}

// All reports whether these are the numbers of the machine's own user namespace, which has each of them.
func (l Map) All() bool {
	return len(l) == 1 && l[0] == idRange{0, 0, 1<<32 - 1}
}

// Has reports whether the user namespace has the number.
func (l Map) Has(id uint32) bool {
	_, ok := l.Outside(id)
	return ok
}

// Outside returns the number outside. For another user namespace than the reader's, that is the number in the reader's.
func (l Map) Outside(id uint32) (number uint32, ok bool) {
	for _, r := range l {
		if uint64(id) >= r.inside && uint64(id) < r.inside+r.size {
			return uint32(r.outside + uint64(id) - r.inside), true
		}
	}
	return 0, false
}

func (l Map) String() string {
	if len(l) == 0 {
		return "none"
	}
	var ranges []string
	for _, r := range l {
		ranges = append(ranges, fmt.Sprintf("%d to %d", r.inside, r.inside+r.size-1))
	}
	return strings.Join(ranges, ", ")
}

// CheckOwner refuses the number that means "no change" to the kernel, and users and groups that this user namespace
// does not have, to whom no tap can be given.
func CheckOwner(o infra.Owner) error {
	if o.UID == 1<<32-1 || o.GID == 1<<32-1 {
		return &cache.FieldError{Field: "owner", Reason: fmt.Sprintf("%d is no user's or group's number", uint32(1<<32-1))}
	}
	return errors.Join(Check("owner.uid", "/proc/self/uid_map", o.UID), Check("owner.gid", "/proc/self/gid_map", o.GID))
}

// Check refuses a number that this user namespace does not have. The file is its uid_map or gid_map.
func Check(field, path string, id uint32) error {
	mapped, err := Read(path)
	var unread *fs.PathError
	if errors.As(err, &unread) || err == nil && mapped.Has(id) {
		return nil // without the file, the kernel decides
	}
	if err != nil {
		return err
	}
	return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d is not mapped in this user namespace, which has %v (%s): name one of these", id, mapped, path)}
}
