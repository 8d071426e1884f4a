package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// devicePaths are the devices that guestwire-node can give.
var devicePaths = map[string]string{"tun": "/dev/net/tun", "kvm": "/dev/kvm", "vhost-net": "/dev/vhost-net"}

// devices are those of the node that pods may have.
type devices struct {
	dev     string // the node's /dev, as this process sees it
	allowed []string
}

// device is a character device of the node.
type device struct {
	path         string // on the node, and in the container
	major, minor uint32
	mode         fs.FileMode
}

// newDevices takes the flag -devices: names with commas between. tun is always allowed.
func newDevices(dev, names string) (devices, error) {
	d := devices{dev, []string{"tun"}}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if name == "" || name == "tun" {
			continue
		}
		if devicePaths[name] == "" {
			return d, fmt.Errorf("-devices %s: no such device, want kvm, vhost-net", name)
		}
		d.allowed = append(d.allowed, name)
	}
	return d, nil
}

// find returns the device, if it is allowed and the node has it.
func (d devices) find(name string) (device, error) {
	path := devicePaths[name]
	if !slices.Contains(d.allowed, name) {
		return device{}, fmt.Errorf("device %s: not allowed on this node (-devices of guestwire-node has %s)", name, strings.Join(d.allowed, ", "))
	}
	info, err := os.Stat(filepath.Join(d.dev, strings.TrimPrefix(path, "/dev/")))
	if errors.Is(err, fs.ErrNotExist) {
		return device{}, fmt.Errorf("device %s: the node has no %s: %s", name, path, wayOut[name])
	}
	if err != nil {
		return device{}, fmt.Errorf("device %s: %w", name, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return device{}, fmt.Errorf("device %s: the node's %s is no character device", name, path)
	}
	major, minor := deviceNumbers(stat.Rdev)
	return device{path, major, minor, info.Mode().Perm()}, nil
}

var wayOut = map[string]string{
	"tun":       "modprobe tun",
	"kvm":       "its CPU has no virtualization, or the module is not loaded (modprobe kvm_intel, kvm_amd)",
	"vhost-net": "modprobe vhost_net",
}

// deviceNumbers takes a device number apart as glibc's major(3) does.
func deviceNumbers(rdev uint64) (major, minor uint32) {
	return uint32(rdev>>8&0xfff | rdev>>32&^0xfff), uint32(rdev&0xff | rdev>>12&^0xff)
}
