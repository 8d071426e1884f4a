package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Found is a network namespace that is alive.
type Found struct {
	id     Identity
	handle bool // it opens by its handle
	places []place
}

// Find returns those of the wanted network namespaces that are alive. A namespace of another boot is never alive.
//
// Since Linux 6.18 the kernel opens a namespace by its number, so Find knows at once, also of a namespace that a socket
// alone keeps. That needs CAP_SYS_ADMIN in the machine's user namespace and PID namespace. For one that is at no place,
// Find waits up to a second, in all, whether it is just ending.
//
// Elsewhere Find walks through /proc, whose size is any user's choice: it returns the cause of ctx soon after ctx ends.
// It looks first at the namespaces of processes and threads, and at the mounts of the caller's mount namespace. If one
// of the wanted namespaces is at none of these, it looks at open files and at the mounts of other mount namespaces. The
// inode number leads to a place, and the cookie proves it, as the kernel uses inode numbers again. If none of the
// places can be opened, or one of the cookies is not known, the inode number decides: then a namespace that is gone may
// be found, but a living one is not missed. The walk does not see a namespace that is kept by a socket alone, by a file
// on its way through a socket, or by a mount namespace without a process.
//
// Unseen names what the walk could not look at: "open files of processes: 3, such as process 1234: permission denied".
// The error means that nothing could be looked at.
//
// The caller's open files count like those of other processes, because each of them keeps the namespace alive.
// The caller's threads do not count, except the main one: one of Do or Visit leaves the namespace with its call.
//
// Find needs root to look at all processes. It reads nothing but /proc, and never waits for the file system of
// a container.
func Find(ctx context.Context, wanted []Identity) (found map[Identity]*Found, unseen []string, err error) {
	found, unseen, err = find(ctx, wanted)
	if err != nil {
		return nil, nil, fmt.Errorf("look for network namespaces: %w", err)
	}
	return found, unseen, nil
}

func find(ctx context.Context, wanted []Identity) (found map[Identity]*Found, unseen []string, err error) {
	boot, err := bootID()
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return nil, nil, err
	}
	h := openHandles()
	defer h.close()
	f := finder{ctx: ctx, self: self, wanted: map[file]*living{}, mounts: map[mounts]bool{}}
	found = map[Identity]*Found{}
	gone := map[Identity]bool{}
	for _, id := range wanted {
		alive, known := h.lives(id)
		gone[id] = id.BootID != boot || known && !alive
		if gone[id] {
			continue
		}
		if alive {
			found[id] = &Found{id: id, handle: true}
		}
		if l := f.wanted[file{id.Device, id.Inode}]; l == nil {
			f.wanted[file{id.Device, id.Inode}] = &living{known: alive}
		}
	}
	if len(f.wanted) > 0 {
		if err := f.scan(); err != nil {
			return nil, nil, err
		}
	}
	f.await(h, found)
	for _, id := range wanted {
		if l := f.wanted[file{id.Device, id.Inode}]; !gone[id] && l.matches(id) {
			if found[id] == nil {
				found[id] = &Found{id: id}
			}
			found[id].places = l.list()
		}
	}
	for _, m := range f.missed {
		unseen = append(unseen, m.String())
	}
	return found, unseen, nil
}

// Places returns where the namespace was found, for people: "/run/netns/pod", "/proc/1234/ns/net", "/proc/1234/fd/7",
// "/proc/1234/root/run/netns/pod". It has at least one place, and at most one of each kind, in
// this order: mounts of the caller's mount namespace, processes and threads, open files, mounts of other mount
// namespaces. Open files of other processes and other mount namespaces are there only if Find had to look at them.
func (f *Found) Places() []string {
	var texts []string
	for _, p := range f.places {
		texts = append(texts, p.text)
	}
	if len(texts) == 0 {
		texts = append(texts, "a place that is not seen here (an open file, another mount namespace or a socket keeps it)")
	}
	return texts
}

// Open opens the namespace. What it returns is that namespace, whatever another user has put at its places meanwhile;
// and nothing but a network namespace is ever opened. The error is fs.ErrNotExist if the namespace is gone, or has left
// the places where Find has found it.
func (f *Found) Open() (*os.File, error) {
	if f.handle {
		h := openHandles()
		defer h.close()
		ns, err := h.open(f.id)
		if err == unix.ESTALE || err == errMoved {
			err = fs.ErrNotExist
		}
		if err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", f.id.Name(), err)
		}
		return ns, nil
	}
	var errs []error
	for _, p := range f.places {
		ns, cookie, err := openPlace(file{f.id.Device, f.id.Inode}, p.text, p.open)
		if err == nil && (f.id.Cookie == 0 || cookie == f.id.Cookie) {
			return ns, nil
		}
		if err == nil {
			ns.Close()
			err = errMoved
		}
		if ended(err) {
			err = fs.ErrNotExist
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.text, err))
	}
	return nil, fmt.Errorf("network namespace %s: %w", f.id.Name(), errors.Join(errs...))
}

// ErrNotSeen means that a namespace which Find has not found may be alive nevertheless.
var ErrNotSeen = errors.New("the node's other processes, which may be in it, are not visible in this PID namespace")

// CheckGone returns ErrNotSeen if the caller is not in the node's PID namespace, and the namespace, which Find has not
// found, is one of this boot: then Find has not seen the processes that keep it.
func CheckGone(id Identity) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if id.BootID == boot && !seesNode() {
		return ErrNotSeen
	}
	return nil
}

// await removes from found what ends within a second: a socket that is closed already keeps its namespace for a moment,
// until the kernel has freed it, and nothing else does. It waits only for namespaces without a place.
func (f *finder) await(h handles, found map[Identity]*Found) {
	const moment = time.Second
	for end := time.Now().Add(moment); f.ctx.Err() == nil; time.Sleep(time.Millisecond) {
		waits := false
		for id := range found {
			if l := f.wanted[file{id.Device, id.Inode}]; l.places != [kinds]*place{} {
				continue
			}
			if alive, known := h.lives(id); known && !alive {
				delete(found, id)
			} else {
				waits = true
			}
		}
		if !waits || time.Now().After(end) {
			return
		}
	}
}
