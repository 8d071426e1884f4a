package phase1_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestKernels asks the running kernel what docs/reference/limits.md says of it.
func TestKernels(t *testing.T) {
	nstest.KernelDecides(t, "what it can do is a column of a table")
	nstest.Need(t, "nft")
	nstest.NeedTaps(t)
	const page, heading = "../docs/reference/limits.md", "| the kernel |"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n"+heading)
	if !ok {
		t.Fatalf("%s has no table that begins with %q", page, heading)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(uname.Release[:])
	version := strings.Join(strings.SplitN(release, ".", 3)[:2], ".")
	column := slices.Index(strings.Split(heading+lines[0], " | "), version)
	if column < 0 {
		nstest.LeaveOut(t, "the table of kernels has no Linux "+version)
	}

	n := nstest.NewNetwork(t)
	n.Pod.IP("tuntap add dev many mode tap multi_queue")
	n.Pod.Exec("nft", "add table inet t; add set inet t s { type mark; flags timeout; }")
	for _, life := range []string{"1m", "2h"} {
		n.Pod.Exec("nft", "add element inet t s { 7 timeout "+life+" }")
	}
	renewed := strings.Contains(n.Pod.Exec("nft", "list set inet t s"), "timeout 2h")
	n.Pod.IP("link add goes type veth peer name peer")
	n.Pod.Exec("nft", "add table netdev t; add chain netdev t c { type filter hook ingress device goes priority 0; }")
	n.Pod.IP("link del goes")
	stays := strings.Contains(n.Pod.Exec("nft", "list ruleset"), "chain c")
	has := map[string]bool{"adds a set's element again with its new time": renewed, "keeps a chain at a link's ingress when the link goes": stays}
	if err := netns.Do(n.Pod.File, func() error {
		k, err := kernel.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		if has["takes frames whose checksum begins before the packet"], _, err = k.EarlyChecksums(); err != nil {
			return err
		}
		_, err = os.Stat("/proc/thread-self/root/proc/sys/net/ipv6/conf/eth0/force_forwarding")
		has["forwards IPv6 by one link alone (`force_forwarding`)"] = err == nil
		most, _, err := tap.Queues("many")
		has["reports a tap's queues"] = most > 0
		if err != nil {
			return err
		}
		files, err := tap.OpenQueues("many", 2)
		if err != nil {
			return err
		}
		defer files[0].Close()
		defer files[1].Close()
		const udpSegments = 0x01 | 0x20 | 0x40 // TUN_F_CSUM, TUN_F_USO4, TUN_F_USO6
		has["takes segments of UDP from a guest"] = unix.IoctlSetInt(int(files[0].Fd()), unix.TUNSETOFFLOAD, udpSegments) == nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	has["opens a namespace by its number"] = opensByNumber(t, n.Pod.File)

	for _, line := range lines[2:] {
		cells := strings.Split(line, " | ")
		what := strings.TrimPrefix(cells[0], "| ")
		does, known := has[what]
		if delete(has, what); !known {
			t.Errorf("row %q has no question", what)
			continue
		}
		if want := map[bool]string{true: "yes", false: "no"}[does]; cells[column] != want {
			t.Errorf("Linux %s, %s: %s, and %s says %s", release, what, want, page, cells[column])
		}
	}
	for what := range has {
		t.Errorf("%s has no row %q", page, what)
	}
}

// opensByNumber reports whether the namespace opens by the number that NS_GET_ID gives (struct nsfs_file_handle).
func opensByNumber(t *testing.T, ns *os.File) bool {
	var handle struct {
		id          uint64
		kind, inode uint32
	}
	const getID, nsfs = 0x8008b70d, 0xf1
	var stat unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, ns.Fd(), getID, uintptr(unsafe.Pointer(&handle.id))); errno != 0 {
		return false
	}
	handle.kind, handle.inode = unix.CLONE_NEWNET, uint32(stat.Ino)
	fd, err := unix.OpenByHandleAt(int(ns.Fd()), unix.NewFileHandle(nsfs, unsafe.Slice((*byte)(unsafe.Pointer(&handle)), unsafe.Sizeof(handle))), unix.O_RDONLY)
	if err != nil {
		t.Log("open by number:", err)
		return false
	}
	unix.Close(fd)
	return true
}
