package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
)

// check makes QEMU's arguments with options of the form that the record's real ones will have. It returns the device's
// id.
func check(r *cache.Record) (id any, err error) {
	var o qemu.Options
	if o.Vhost, err = vhost(r); err != nil {
		return nil, err
	}
	if r.Tap != "" {
		o.FDs = slices.Repeat([]string{"3"}, r.Queues)
	}
	if r.Passt != nil {
		o.Socket = "passt"
	}
	nic, err := qemu.NewNIC(r, o)
	if err != nil {
		return nil, err
	}
	_, err = nic.Args()
	return nic.Device["id"], err
}

// vhost reports whether QEMU, as this process, can open the device of vhost for the record's tap. It is an error that
// QEMU cannot, if the record wants vhost.
func vhost(r *cache.Record) (bool, error) {
	if r.Tap == "" {
		return false, nil
	}
	f, err := os.OpenFile("/dev/vhost-net", os.O_RDWR, 0)
	if err == nil {
		return true, f.Close()
	}
	if r.Device.Driver == "vhost" {
		return false, fmt.Errorf("NIC %s: device.driver vhost: %w: let the launcher's user or one of its groups open it (guestwire-agent exec -groups), or run Setup again with device.driver qemu", r.Name, err)
	}
	return false, nil
}
