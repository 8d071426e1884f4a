// krun stands in for crun's krun in a test with podman: libkrun needs KVM. It is crun, except that the process of a new
// container is this program again, as the VMM.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is this program in the container.
const inside = "/.krun"

func main() {
	run := runtime
	if os.Args[0] == inside {
		run = vmm
	}
	fmt.Fprintln(os.Stderr, "krun:", run(os.Args[1:]))
	os.Exit(1)
}

// runtime is an OCI runtime.
func runtime(args []string) error {
	if i := slices.Index(args, "--bundle"); slices.Contains(args, "create") && i+1 < len(args) {
		if err := edit(filepath.Join(args[i+1], "config.json")); err != nil {
			return err
		}
	}
	return syscall.Exec("/usr/bin/crun", append([]string{"crun"}, args...), os.Environ())
}

// edit makes the VMM the process of a container.
func edit(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	config := map[string]any{}
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber()
	if err := in.Decode(&config); err != nil {
		return err
	}
	annotations, _ := config["annotations"].(map[string]any)
	process, _ := config["process"].(map[string]any)
	mounts, _ := config["mounts"].([]any)
	tap, ok := annotations["krun.tap_name"]
	if !ok || process == nil {
		return errors.New("no annotation krun.tap_name, or no process")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	process["args"] = []any{inside, tap}
	config["mounts"] = append(mounts, map[string]any{"destination": inside, "type": "bind", "source": self, "options": []string{"bind", "ro"}})
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// mac is what crun's guests have: crun computes it from a text that is the container's id, and is empty when crun has
// written its own name over its arguments.
const mac = "26:23:22:84:e4:9c"

// vmm opens the tap by the calls of libkrun (src/devices/src/virtio/net/tap.rs at 1.19.0, its offloads by the features
// that crun asks for). It gives the tap to QEMU, whose further arguments are in the container's environment. libkrun's
// device has no control queue.
func vmm(args []string) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	ifr, err := unix.NewIfreq(args[0])
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fmt.Errorf("TUNSETIFF %s: %w", args[0], err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, 12); err != nil {
		return fmt.Errorf("TUNSETVNETHDRSZ: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_UFO); err != nil {
		return fmt.Errorf("TUNSETOFFLOAD: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	const device = "virtio-net-pci,netdev=eth0,mac=" + mac + ",ctrl_vq=off,ctrl_rx=off,ctrl_rx_extra=off,ctrl_vlan=off,ctrl_mac_addr=off," +
		"ctrl_guest_offloads=off,guest_announce=off"
	line := fmt.Sprintf("exec qemu-system-x86_64 -netdev tap,id=eth0,fd=%d,vhost=off -device %s %s", fd, device, os.Getenv("KRUN_QEMU"))
	return syscall.Exec("/bin/sh", []string{"sh", "-c", line}, os.Environ())
}
