package phase2

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/tap"
)

// OpenTap opens the guest's tap for a VMM that takes descriptors. It returns one file for each of the record's Queues;
// a file of a macvtap is /dev/tapINDEX. The caller closes the files. A VMM that inherits them has copies.
//
// The calling thread must be in the tap's namespace (see [VM.Serve]). The user must be the tap's owner, and able to
// open /dev/net/tun.
//
// A read returns one Ethernet frame with a struct virtio_net_hdr of 10 octets in front, and a write sends one
// (IFF_VNET_HDR, IFF_NO_PI). The VMM may choose a longer header, and offloads. OpenTap undoes those of an earlier VMM,
// and its filters. The files do not block, and Go's deadlines work.
//
//	*cache.FieldError  the record is not valid
//	*cache.FieldError  the binding has no tap: sriov, passt, slirp
//	*cache.FieldError  the tap cannot have the record's number of queues
//	fs.ErrNotExist     the thread is in another namespace than the record's
//	fs.ErrNotExist     the tap or the device is missing
//	fs.ErrPermission   the tap belongs to another user, or the user cannot open the device
//	unix.EBUSY         a process has the tap open; the kernel does not report this of a macvtap
//
// Source: Documentation/networking/tuntap.rst in Linux; linux/virtio_net.h.
func OpenTap(r cache.Record) ([]*os.File, error) {
	files, err := openTap(r)
	if err != nil {
		return nil, fmt.Errorf("tap of interface %q: %w", r.Name, err)
	}
	return files, nil
}

func openTap(r cache.Record) ([]*os.File, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if r.Tap == "" {
		return nil, &cache.FieldError{Field: "binding", Reason: fmt.Sprintf("%q, whose guest has no tap: the VMM gets %s", r.Binding, map[cache.Kind]string{
			cache.BindingSRIOV: "the function of the network card at sriov.pciAddress",
			cache.BindingPasst: "the socket of passt",
			cache.BindingSlirp: "the words for QEMU's user network",
		}[r.Binding])}
	}
	if err := checkNamespace(r.Namespace); err != nil {
		return nil, err
	}
	if r.Binding == cache.BindingMacvtap {
		return tap.OpenMacvtap(r.Tap, r.Queues)
	}
	most, _, err := tap.Queues(r.Tap)
	if err != nil {
		return nil, err
	}
	if most > 1 && r.Queues > most {
		return nil, &cache.FieldError{Field: "queues", Reason: fmt.Sprintf("%d, but this kernel gives a tap %d: run Setup again with fewer", r.Queues, most)}
	}
	if most == 0 || (most > 1) == (r.Queues > 1) {
		files, err := tap.OpenQueues(r.Tap, r.Queues)
		if !errors.Is(err, unix.EINVAL) {
			return files, err
		}
		// The kernel has not reported the number. It refuses a tap for no other reason by this error.
	}
	if r.Queues > 1 {
		return nil, &cache.FieldError{Field: "queues", Reason: fmt.Sprintf("%d, but tap %s has a single queue: run Setup again as before, which writes the record anew", r.Queues, r.Tap)}
	}
	return nil, &cache.FieldError{Field: "queues", Reason: fmt.Sprintf("1, but tap %s was made for several queues: run Setup again as before, which writes the record anew", r.Tap)}
}

// checkNamespace returns fs.ErrNotExist if the calling thread is not in the namespace that the record names:
// BOOT-INODE-COOKIE. In the namespace of another pod, a tap with the same name may belong to the same user. The boot is
// not compared, as a container may have a boot identifier of its own.
func checkNamespace(name string) error {
	parts := strings.Split(name, "-")
	if len(parts) != 3 {
		return nil // not known
	}
	// stat(2) would be AppArmor's to deny: the namespace's file has no path.
	link, err := os.Readlink("/proc/thread-self/ns/net")
	inode, ok := strings.CutPrefix(strings.TrimSuffix(link, "]"), "net:[")
	if err != nil || !ok {
		return nil // without /proc there is nothing to compare
	}
	cookie := parts[2]
	if c := namespaceCookie(); c != 0 {
		cookie = strconv.FormatUint(c, 10)
	}
	here := parts[0] + "-" + inode + "-" + cookie
	if name != here && inode == parts[1] && cookie != parts[2] {
		return fmt.Errorf("the record is of the network namespace %s, which is gone, and the calling thread is in %s: run Setup there: %w",
			name, withPlace(here), fs.ErrNotExist)
	}
	if name != here {
		return fmt.Errorf("the calling thread is in the network namespace %s, and the tap is in %s: enter the namespace of the record first (guestwire-agent exec -netns PATH; in a test, guestwiretest.Pod.Serve or Do): %w",
			withPlace(here), withPlace(name), fs.ErrNotExist)
	}
	return nil
}

// withPlace adds the path at which the namespace BOOT-INODE-COOKIE is mounted, if it is in this mount namespace:
// "08f437ce-4026532178-17 (/run/netns/pod)".
//
// Source: proc_pid_mountinfo(5); the root of a namespace's mount is net:[INODE].
func withPlace(name string) string {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return name
	}
	root := "net:[" + strings.Split(name, "-")[1] + "]"
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && f[3] == root {
			return name + " (" + f[4] + ")"
		}
	}
	return name
}

// namespaceCookie is that of the calling thread's namespace; 0: a filter of system calls forbids the question.
func namespaceCookie() uint64 {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // which a launcher needs for its taps, too
	if err != nil {
		return 0
	}
	defer unix.Close(s)
	cookie, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}
