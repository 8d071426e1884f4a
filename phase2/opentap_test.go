package phase2_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// openTapAs calls OpenTap in a namespace on a thread of its own, as a user without capabilities, after prepare. The
// test's end closes the files.
func openTapAs(t *testing.T, ns *nstest.Namespace, uid, gid int, r cache.Record, prepare func() error) (files []*os.File, err error) {
	t.Helper()
	failed := netns.Do(ns.File, func() error {
		if prepare != nil {
			if err := prepare(); err != nil {
				return err
			}
		}
		// The system calls are the thread's alone, which ends with the function.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
			return errno
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			return errno
		}
		files, err = phase2.OpenTap(r)
		return nil
	})
	if failed != nil {
		t.Fatal(failed)
	}
	t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	return files, err
}

// setupQueues wires a pod's NIC and returns the record.
func setupQueues(t *testing.T, n nstest.Network, b infra.Binding, queues int) cache.Record {
	t.Helper()
	r, err := (phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}).Setup(t.Context(), infra.Spec{
		Binding: b, State: n.State, Owner: nstest.Owner(), Queues: queues,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ioctl is a value of a tap's file.
func ioctl(t *testing.T, f *os.File, request uint) int {
	t.Helper()
	v, err := unix.IoctlGetInt(int(f.Fd()), request)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// asksGateway sends ARP requests for the gateway by the first file, and waits for a reply at any.
func asksGateway(t *testing.T, files []*os.File, r cache.Record) {
	t.Helper()
	const header = 10
	request := make([]byte, header, header+42)
	request = append(append(append(request, bytes.Repeat([]byte{255}, 6)...), r.MAC[:]...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	request = append(append(append(request, r.MAC[:]...), nstest.Pod4.AsSlice()...), 0, 0, 0, 0, 0, 0)
	request = append(request, nstest.Gateway4.AsSlice()...)
	answered := make(chan []byte, len(files))
	for _, f := range files {
		if err := f.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		go func() {
			frame := make([]byte, 2000)
			for {
				n, err := f.Read(frame)
				if err != nil {
					answered <- nil
					return
				}
				if n >= header+42 && binary.BigEndian.Uint16(frame[header+12:]) == 0x0806 && bytes.Equal(frame[header+28:header+32], nstest.Gateway4.AsSlice()) {
					answered <- frame[:n]
					return
				}
			}
		}()
	}
	var reply []byte
	for ended := 0; ended < len(files); {
		// The first request may be lost: a bridge forwards a moment after the tap has a carrier.
		if _, err := files[0].Write(request); err != nil {
			t.Fatal(err)
		}
		select {
		case frame := <-answered:
			if ended++; frame == nil {
				break
			}
			reply = frame
			for _, f := range files { // end the other readers
				if err := f.SetReadDeadline(time.Unix(1, 0)); err != nil {
					t.Fatal(err)
				}
			}
		case <-time.After(time.Second):
		}
	}
	if reply == nil {
		t.Fatal("no ARP reply of the gateway")
	}
	if !bytes.Equal(reply[:header], make([]byte, header)) {
		t.Errorf("the header of an ARP reply is %x, want zeros", reply[:header])
	}
}

// TestOpenTap opens the taps of the bindings as the launcher's user without capabilities, and uses them. What an
// earlier VMM has set is undone.
func TestOpenTap(t *testing.T) {
	for queues, binding := range map[int]infra.Binding{1: infra.Bridge{}, 2: infra.Redirect{}, 4: infra.Bridge{}} {
		t.Run(fmt.Sprintf("%s with %d queues", binding.Kind(), queues), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			r := setupQueues(t, n, binding, queues)
			earlier, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, nil)
			if err != nil {
				t.Fatal(err)
			}
			nstest.FilterTap(t, earlier[0])
			if err := unix.IoctlSetPointerInt(int(earlier[0].Fd()), unix.TUNSETVNETHDRSZ, 12); err != nil {
				t.Fatal(err)
			}
			for _, f := range earlier {
				f.Close()
			}
			files, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(files) != queues {
				t.Errorf("%d files, want %d", len(files), queues)
			}
			for _, f := range files {
				ifr, err := unix.NewIfreq("")
				if err != nil {
					t.Fatal(err)
				}
				if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNGETIFF, ifr); err != nil {
					t.Fatal(err)
				}
				const relevant = unix.IFF_TAP | unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE
				want := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
				if queues > 1 {
					want |= unix.IFF_MULTI_QUEUE
				}
				if ifr.Name() != r.Tap || ifr.Uint16()&relevant != want {
					t.Errorf("%s with flags %#x, want %s with %#x", ifr.Name(), ifr.Uint16(), r.Tap, want)
				}
				if size := ioctl(t, f, unix.TUNGETVNETHDRSZ); size != 10 {
					t.Errorf("a header of %d octets, want 10", size)
				}
				for request, want := range map[int]int{unix.F_GETFL: unix.O_NONBLOCK, unix.F_GETFD: unix.FD_CLOEXEC} {
					if v, err := unix.FcntlInt(f.Fd(), request, 0); err != nil || v&want == 0 {
						t.Errorf("fcntl %d: %#x, %v, want %#x", request, v, err, want)
					}
				}
			}
			asksGateway(t, files, r)
		})
	}
}

// TestOpenTapMacvtap opens each queue of a macvtap, and refuses a device that belongs to another macvtap.
func TestOpenTapMacvtap(t *testing.T) {
	n := nstest.NewMacvtap(t)
	nstest.NeedRoot(t, "the test makes device nodes")
	r := setupQueues(t, n, infra.Macvtap{}, 2)
	path, own := macvtapNode(t, n.Pod, "eth0"), macvtapNumber(t, n.Pod, "eth0")
	node := func(mode uint32, number, owner int) func() error { return makeNode(path, number, mode, owner) }
	files, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, node(0o600, own, nstest.LauncherUID))
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files, %v, want 2", len(files), err)
	}
	asksGateway(t, files, r)
	for _, f := range files {
		f.Close()
	}

	earlier, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, node(0o600, own, nstest.LauncherUID))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(earlier[0].Fd()), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6); err != nil {
		t.Fatal(err)
	}
	for _, f := range earlier {
		f.Close()
	}
	r.Queues = 1 // which gets all frames
	files, err = openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, node(0o600, own, nstest.LauncherUID))
	if err != nil {
		t.Fatal(err)
	}
	n.World.IP("neigh replace 10.244.1.7 lladdr " + r.MAC.String() + " dev " + strings.Fields(n.World.IP("-o route get 10.244.1.7"))[2])
	q, err := n.World.Question("udp", netip.Addr{}, netip.MustParseAddrPort("10.244.1.7:9"), 100)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := files[0].SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 2000); frame[10+23] != unix.IPPROTO_UDP; {
		if _, err := files[0].Read(frame); err != nil {
			t.Fatal(err)
		}
		if frame[0] != 0 {
			t.Errorf("the header of a datagram is %x, want a finished checksum", frame[:10])
		}
	}
	r.Queues = 2

	n.World.IP("link add link lower name other type macvtap mode bridge")
	other := macvtapNumber(t, n.World, "other")
	for _, c := range []struct {
		name    string
		prepare func() error
		kind    error
		words   string
	}{
		{"none", func() error { return ownMounts("/dev") }, fs.ErrNotExist, "there is no device"},
		{"root's", node(0o600, own, 0), fs.ErrPermission, "chown it"},
		{"another's", node(0o666, other, 0), fs.ErrNotExist, "belongs to another macvtap, other"},
		{"gone", node(0o666, int(unix.Mkdev(unix.Major(uint64(own)), 4095)), 0), fs.ErrNotExist, "a macvtap that is gone"},
		{"no macvtap's", node(0o666, int(unix.Mkdev(1, 3)), 0), fs.ErrNotExist, "is no macvtap's"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, c.prepare)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.words) || files != nil {
				t.Errorf("got %d files, %v, want %v and %q", len(files), err, c.kind, c.words)
			}
		})
	}
}

// macvtapNode is the path of a macvtap's device.
func macvtapNode(t *testing.T, ns *nstest.Namespace, link string) string {
	t.Helper()
	return "/dev/tap" + strings.TrimSpace(ns.Exec("cat", "/sys/class/net/"+link+"/ifindex"))
}

// macvtapNumber is the number of a macvtap's device.
func macvtapNumber(t *testing.T, ns *nstest.Namespace, link string) int {
	t.Helper()
	file := "/sys/class/net/" + link + "/macvtap/" + filepath.Base(macvtapNode(t, ns, link)) + "/dev"
	var major, minor uint32
	if _, err := fmt.Sscanf(ns.Exec("cat", file), "%d:%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return int(unix.Mkdev(major, minor))
}

// makeNode returns a function that gives the thread a /dev of its own with one device, as a device plugin does.
func makeNode(path string, number int, mode uint32, owner int) func() error {
	return func() error {
		if err := ownMounts("/dev"); err != nil {
			return err
		}
		return errors.Join(unix.Mknod(path, unix.S_IFCHR, number), os.Chmod(path, fs.FileMode(mode)), os.Chown(path, owner, owner))
	}
}

// ownMounts gives the thread mounts of its own, with an empty directory at path.
func ownMounts(path string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("none", path, "tmpfs", 0, "mode=755")
}

// TestOpenTapErrors: an error says what is wrong where the kernel says EINVAL or nothing, and no file stays open, which
// the leak check of the package finds.
func TestOpenTapErrors(t *testing.T) {
	n := nstest.NewNetwork(t)
	single := setupQueues(t, n, infra.Bridge{}, 1)
	several := single
	several.Tap, several.Namespace, several.Queues = "wide0", "", 2
	n.Pod.IP(fmt.Sprintf("tuntap add wide0 mode tap user %d vnet_hdr multi_queue", nstest.LauncherUID))
	n.Pod.IP("link add odd type bridge")
	if nstest.LauncherUID != 0 { // else the test runs as the only user
		n.Pod.IP(fmt.Sprintf("tuntap add group0 mode tap user %d group 4711 vnet_hdr multi_queue", nstest.LauncherUID))
	}
	n.Pod.IP(fmt.Sprintf("tuntap add tun0 mode tun user %d", nstest.LauncherUID))
	edited := func(r cache.Record, edit func(*cache.Record)) cache.Record { edit(&r); return r }
	device := func(make func(path string) error) func() error {
		return func() error {
			if err := ownMounts("/dev/net"); err != nil {
				return err
			}
			return make("/dev/net/tun")
		}
	}
	for _, c := range []struct {
		name    string
		record  cache.Record
		uid     int
		prepare func() error
		kind    error  // nil: a *cache.FieldError
		field   string // of the *cache.FieldError
		words   string
	}{
		{name: "invalid record", record: edited(single, func(r *cache.Record) { r.MTU = 0 }), field: "mtu"},
		{name: "sriov", record: cache.Record{Version: cache.Version, Name: "eth0", Binding: cache.BindingSRIOV, Queues: 1, MAC: single.MAC,
			SRIOV: &cache.SRIOV{PCIAddress: "0000:03:10.1"}}, field: "binding", words: "sriov.pciAddress"},
		{name: "passt", record: cache.Record{Version: cache.Version, Name: "eth0", Binding: cache.BindingPasst, Queues: 1, MAC: single.MAC, MTU: 1450,
			Passt: &cache.Passt{}}, field: "binding", words: "the socket of passt"},
		{name: "slirp", record: cache.Record{Version: cache.Version, Name: "eth0", Binding: cache.BindingSlirp, Queues: 1, MAC: single.MAC, MTU: 1500,
			Slirp: &cache.Slirp{IPv4: netip.MustParsePrefix("10.0.2.0/24")}}, field: "binding", words: "QEMU's user network"},
		{name: "the responder's tap", record: edited(single, func(r *cache.Record) { r.Tap = r.ResponderTap }), field: "responderTap", words: "is the guest's tap"},
		{name: "several queues of a single one", record: edited(single, func(r *cache.Record) { r.Queues = 2 }), field: "queues", words: "has a single queue"},
		{name: "one queue of several", record: edited(several, func(r *cache.Record) { r.Queues = 1 }), field: "queues", words: "was made for several queues"},
		{name: "another namespace", record: edited(single, func(r *cache.Record) { r.Namespace = "12345678-1-1" }), kind: fs.ErrNotExist, words: "enter the namespace of the record first"},
		{name: "an earlier namespace with this inode", record: edited(single, func(r *cache.Record) { r.Namespace += "0" }), kind: fs.ErrNotExist, words: "which is gone"},
		{name: "no such link", record: edited(single, func(r *cache.Record) { r.Tap = "absent" }), kind: fs.ErrNotExist, words: "no such link in this network namespace"},
		{name: "a bridge", record: edited(single, func(r *cache.Record) { r.Tap = "odd" }), kind: unix.EINVAL, words: "is no tap"},
		{name: "a tun", record: edited(single, func(r *cache.Record) { r.Tap = "tun0" }), kind: unix.EINVAL, words: "is no tap"},
		{name: "another user", record: single, uid: 4711, kind: fs.ErrPermission, words: fmt.Sprintf("user 4711 of group 4711 is not its owner, user %[1]d of group %[1]d: operation", nstest.LauncherUID)},
		{name: "another group", record: edited(several, func(r *cache.Record) { r.Tap = "group0" }), kind: fs.ErrPermission,
			words: fmt.Sprintf("user %[1]d of group %[1]d is not its owner, user %[1]d of group 4711: operation", nstest.LauncherUID)},
		{name: "no device", record: single, prepare: device(func(string) error { return nil }), kind: fs.ErrNotExist, words: "--device /dev/net/tun"},
		{name: "closed device", record: single, prepare: device(func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200))) }), kind: fs.ErrPermission, words: "chmod 0666"},
		{name: "a file for a device", record: single, prepare: device(func(path string) error { return os.WriteFile(path, nil, 0o666) }), kind: unix.ENODEV, words: "/dev/net/tun is a regular file: no such device: rm -d /dev/net/tun"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.uid != 0 || c.kind == fs.ErrPermission {
				nstest.NeedRoot(t, "the test needs two users")
			}
			if c.uid == 0 {
				c.uid = nstest.LauncherUID
			}
			files, err := openTapAs(t, n.Pod, c.uid, c.uid, c.record, c.prepare)
			var field *cache.FieldError
			switch {
			case files != nil:
				t.Errorf("%d files, want none", len(files))
			case c.kind != nil && !errors.Is(err, c.kind), c.kind == nil && (!errors.As(err, &field) || field.Field != c.field):
				t.Errorf("got %v, want %v, field %q", err, c.kind, c.field)
			case !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), "eth0"):
				t.Errorf("got %q, want %q", err, c.words)
			}
		})
	}
}

// TestOpenTapBusy: a tap is opened once. The kernel would let another process add queues to a multi-queue tap.
func TestOpenTapBusy(t *testing.T) {
	for _, queues := range []int{1, 2} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			r := setupQueues(t, n, infra.Redirect{}, queues)
			first, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if files, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, nil); !errors.Is(err, unix.EBUSY) || files != nil {
				t.Errorf("got %d files, %v, want unix.EBUSY", len(files), err)
			}
			asksGateway(t, first, r)
			for _, f := range first {
				f.Close()
			}
			if _, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, nil); err != nil {
				t.Errorf("after the end of the other process: %v", err)
			}
		})
	}
}

// TestOpenTapMost opens as many queues as the kernel gives a tap.
func TestOpenTapMost(t *testing.T) {
	n := nstest.NewNetwork(t)
	r := setupQueues(t, n, infra.Bridge{}, syntax.MaxQueues)
	files, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, nil)
	if err != nil || len(files) != syntax.MaxQueues {
		t.Errorf("%d files, %v, want %d", len(files), err, syntax.MaxQueues)
	}
}

// TestOpenTapLimit: a process that may open too few files gets an error, and none of them.
func TestOpenTapLimit(t *testing.T) {
	n := nstest.NewNetwork(t)
	r := setupQueues(t, n, infra.Bridge{}, 64)
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	files, err := openTapAs(t, n.Pod, nstest.LauncherUID, nstest.LauncherUID, r, func() error {
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open) + 32), Max: before.Max})
	})
	if !errors.Is(err, unix.EMFILE) || files != nil {
		t.Errorf("got %d files, %v, want unix.EMFILE", len(files), err)
	}
}
