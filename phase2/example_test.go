package phase2_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/phase2"
)

// stateDirectory returns a directory with the record that a bridge's Setup writes. It stands for
// /run/guestwire/vm1.
func stateDirectory(responderTap string) string {
	dir, err := os.MkdirTemp("", "guestwire")
	if err != nil {
		log.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer root.Close()
	err = cache.Write(root, cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1,
		ResponderTap: responderTap, ResponderMAC: cache.MAC{2, 0, 0, 0, 0, 8}, MAC: cache.MAC{2, 0, 0, 0, 0, 7}, MTU: 1450,
		IPv4: &cache.IPv4{Address: netip.MustParsePrefix("10.244.1.7/24"), Server: netip.MustParseAddr("10.244.1.1"),
			Routes: []cache.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.244.1.1")}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	return dir
}

// A launcher that may start before Setup has run distinguishes a missing record from a bad one.
func ExampleOpen() {
	dir := stateDirectory("eth0-dhcp")
	defer os.RemoveAll(dir)

	for _, state := range []string{dir, filepath.Join(dir, "none")} {
		vm, err := phase2.Open(state)
		var bad *cache.FileError
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Println("Setup has not run yet")
			continue
		case errors.As(err, &bad):
			log.Fatalf("damaged record %s: %v", bad.Path, bad.Err)
		case err != nil:
			log.Fatal(err)
		}
		for _, r := range vm.Records() {
			fmt.Println(r.Name, r.Binding, r.MAC, r.IPv4.Address)
		}
	}
	// Output:
	// eth0 bridge 02:00:00:00:00:07 10.244.1.7/24
	// Setup has not run yet
}

func ExampleVM_Interfaces() {
	dir := stateDirectory("eth0-dhcp")
	defer os.RemoveAll(dir)

	vm, err := phase2.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	elements, err := vm.Interfaces()
	if err != nil {
		log.Fatal(err)
	}
	for _, element := range elements {
		xml, err := element.Marshal()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(xml)
	}
	// Output:
	// <interface type="ethernet">
	//   <mac address="02:00:00:00:00:07"></mac>
	//   <target dev="eth0-tap" managed="no"></target>
	//   <model type="virtio-non-transitional"></model>
	//   <mtu size="1450"></mtu>
	//   <rom enabled="no"></rom>
	// </interface>
}

// A launcher that runs QEMU without libvirt has qemu.Args open each guest's tap, and passes the queues on.
func ExampleOpenTap() {
	vm, err := phase2.Open("/run/guestwire/vm1")
	if err != nil {
		log.Fatal(err)
	}
	args, taps, err := qemu.Args(vm.Records(), 3, phase2.OpenTap)
	if err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command("qemu-system-x86_64", append([]string{"-nodefaults", "-machine", "q35", "-m", "512", "disk.img"}, args...)...)
	cmd.ExtraFiles = taps
	if err := cmd.Run(); err != nil {
		log.Fatal(err)
	}
}

// A launcher starts its VM when Start has returned, and ends the service when the VM has ended.
func ExampleVM_Start() {
	dir := stateDirectory("") // without a responder's tap, so that the example needs no namespace
	defer os.RemoveAll(dir)

	vm, err := phase2.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	vm.Notify = func(e phase2.Event) { fmt.Println(e.NIC, e.Kind) }
	stop, err := vm.Start(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	// Start the VM here, and wait until it ends.

	// Output:
	// eth0 no-responder
	//  ready
}

// One process that serves a pod from outside the pod's namespace. The program needs this as well, or the goroutine may
// get the main thread, which keeps the namespace alive until the process ends:
//
//	func init() { runtime.LockOSThread() }
func ExampleVM_Serve_otherNamespace() {
	vm, err := phase2.Open("/run/guestwire/vm1")
	if err != nil {
		log.Fatal(err)
	}
	ns, err := os.Open("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	served := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		ns.Close() // an open file keeps the namespace alive, too
		if err == nil {
			err = vm.Serve(ctx)
		}
		served <- err
	}()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
}

// The whole main of a launcher that was started in the pod's namespace as the owner of the taps, by
// nsenter and setpriv or by a container engine. Notify reports which addresses the guest has got, and faults.
func ExampleVM_Serve_notify() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	vm, err := phase2.Open("/run/guestwire/vm1")
	if err != nil {
		log.Fatal(err)
	}
	vm.Log = slog.Default()
	vm.Notify = func(e phase2.Event) {
		switch e.Kind {
		case "dhcpv4-leased", "dhcpv6-leased":
			fmt.Printf("%s of the guest is %v\n", e.NIC, e.Address)
		case "tap-lost", "record-failed", "other-mac-seen":
			fmt.Printf("%s: %s\n", e.NIC, e.Text)
		}
	}
	if err := vm.Serve(ctx); err != nil {
		log.Fatal(err)
	}
	for nic, c := range vm.Counters() {
		fmt.Println(nic, c.Received, c.Sent, c.Events["dhcpv4-leased"], c.Ignored["other-mac"])
	}
}

// A launcher under libvirt attaches the NIC of a new record to the running guest, and detaches the NIC when the record
// is gone. Notify must not wait for libvirt, so a goroutine does. Phase1's Teardown refuses until the guest's tap is
// closed.
func ExampleVM_Serve_plug() {
	virsh := func(verb, xml string) {
		cmd := exec.Command("virsh", verb, "vm1", "/dev/stdin", "--live")
		cmd.Stdin = strings.NewReader(xml)
		if out, err := cmd.CombinedOutput(); err != nil {
			log.Printf("%s: %v: %s", verb, err, out)
		}
	}
	vm, err := phase2.Open("/run/guestwire/vm1")
	if err != nil {
		return // not set up yet
	}
	changed := make(chan struct{}, 1)
	vm.Notify = func(e phase2.Event) {
		if e.Kind == "record-added" || e.Kind == "record-removed" {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}
	elements := func() map[string]string { // by the record's name
		now := map[string]string{}
		for _, r := range vm.Records() {
			element, err := domain.Interface(&r)
			if err != nil {
				log.Print(err)
				continue
			}
			if xml, err := element.Marshal(); err == nil {
				now[r.Name] = xml
			}
		}
		return now
	}
	attached := elements() // with which the domain was started
	go func() {
		for range changed {
			now := elements()
			for nic, xml := range attached {
				if _, there := now[nic]; !there {
					virsh("detach-device", xml) // the element that was attached, as the record is gone
					delete(attached, nic)
				}
			}
			for nic, xml := range now {
				if _, there := attached[nic]; !there {
					virsh("attach-device", xml)
					attached[nic] = xml
				}
			}
		}
	}()
	if err := vm.Serve(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// A launcher that is replaced while the guest runs ends its service with dhcp.ErrHandover. The guest then keeps its
// IPv6 default route until the next launcher serves it.
func ExampleVM_Start_handover() {
	vm, err := phase2.Open("/run/guestwire/vm1")
	if err != nil {
		log.Fatal(err)
	}
	ctx, end := context.WithCancelCause(context.Background())
	stop, err := vm.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}

	end(dhcp.ErrHandover)
	stop() // returns when the taps are free for the next launcher
}

// A program of the pod's namespace gets what the guest's "divert all 443 :15443" leads to it, and reports where the
// guest wanted to go.
func ExampleOriginalDestination() {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel does not say where such a connection went
	l, err := config.Listen(context.Background(), "tcp", ":15443")
	if err != nil {
		log.Fatal(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		to, err := phase2.OriginalDestination(c.(*net.TCPConn))
		if err != nil { // also one that nobody diverted
			log.Print(err)
		} else {
			log.Printf("%v wants to go to %v", c.RemoteAddr(), to)
		}
		c.Close()
	}
}
