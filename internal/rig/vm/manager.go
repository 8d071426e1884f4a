package vm

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/rig/initramfs"
)

// manager is a daemon that configures the network in a guest, instead of DHCP clients.
type manager struct {
	name     string
	programs map[string]string // files in the cache, and where they are in the guest
	files    map[string]string // contents
	trees    []string          // directories in the cache, see addTree
	drivers  []string          // further ones
}

// with returns the manager with these files of /etc/systemd/network alone.
func (m manager) with(files map[string]string) manager {
	const dir = "etc/systemd/network/"
	m.files = maps.Clone(m.files)
	maps.DeleteFunc(m.files, func(name, _ string) bool { return strings.HasPrefix(name, dir) })
	for name, text := range files {
		m.files[dir+name] = text
	}
	return m
}

// managers by the boot that starts them.
var managers = map[Boot]manager{
	BootNetworkd: {
		name:     "systemd-networkd",
		programs: map[string]string{"managers/lib/systemd/systemd-networkd": "bin/systemd-networkd"},
		files: map[string]string{
			"etc/machine-id": machineID,
			"etc/passwd":     passwd + "systemd-network:x:998:998::/:/bin/sh\n",
			"etc/group":      group + "systemd-network:x:998:\n",
			// Without a mode, networkd derives the address from the MAC.
			"etc/systemd/network/eth0.network": "[Match]\nName=eth0\n\n[Network]\nDHCP=yes\nIPv6LinkLocalAddressGenerationMode=stable-privacy\n",
		},
	},
	BootCloudInit: {
		name: "cloud-init",
		programs: map[string]string{
			"managers/lib/systemd/systemd-networkd":  "bin/systemd-networkd",
			"cloudinit/usr/bin/python3.11":           "bin/python3.11",
			"cloudinit/usr/libexec/netplan/generate": "bin/netplan-generate",
			"/sbin/blkid":                            "sbin/blkid",
		},
		trees:   []string{"cloudinit/usr/lib/python3.11", "cloudinit/usr/lib/python3", "cloudinit/etc/cloud"},
		drivers: []string{"virtio_blk", "isofs"},
		files: map[string]string{
			"etc/machine-id":                    machineID,
			"etc/passwd":                        passwd + "systemd-network:x:998:998::/:/bin/sh\n",
			"etc/group":                         group + "systemd-network:x:998:\n",
			"etc/os-release":                    "ID=debian\nVERSION_ID=12\n",
			"usr/lib/os-release":                "ID=debian\nVERSION_ID=12\n",
			"etc/cloud/cloud.cfg.d/99-seed.cfg": "datasource_list: [NoCloud]\n",
			// Debian's netplan is a program of Python that starts the generator and restarts networkd. The generator
			// alone takes a tenth of the time.
			"usr/sbin/netplan": "#!/bin/sh\ntest \"$1\" = generate && exec netplan-generate\n",
			"bin/udevadm":      "#!/bin/sh\n", // there is no udev to wait for
		},
	},
	BootNetworkManager: {
		name: "NetworkManager",
		programs: map[string]string{
			"managers/usr/sbin/NetworkManager": "sbin/NetworkManager",
			"managers/usr/bin/dbus-daemon":     "bin/dbus-daemon",
		},
		files: map[string]string{
			"etc/machine-id":                         machineID,
			"etc/passwd":                             passwd,
			"etc/group":                              group,
			"etc/NetworkManager/NetworkManager.conf": "",
			"etc/dbus.conf": `<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <policy context="default">
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>
`,
		},
	},
}

const (
	passwd = "root:x:0:0::/:/bin/sh\n"
	group  = "root:x:0:\n"
	// machineID is a secret from which both daemons compute the link-local address.
	machineID = "6775657374776972652d746573742d31\n"
)

// libraries returns where the manager's shared libraries are.
func (m manager) libraries(cache string) []string {
	if m.name == "" {
		return nil
	}
	return []string{
		filepath.Join(cache, "managers/usr/lib/x86_64-linux-gnu"),
		filepath.Join(cache, "managers/usr/lib/x86_64-linux-gnu/systemd"),
		filepath.Join(cache, "managers/lib/x86_64-linux-gnu"),
		filepath.Join(cache, "cloudinit/usr/lib/x86_64-linux-gnu"),
	}
}

func (m manager) addFiles(a *initramfs.Archive) {
	done := map[string]bool{"etc": true, "var/lib": true}
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		var missing []string
		for dir := filepath.Dir(name); !done[dir]; dir = filepath.Dir(dir) {
			missing, done[dir] = append(missing, dir), true
		}
		for _, dir := range slices.Backward(missing) {
			a.Dir(dir)
		}
		perm := uint32(0o644)
		if strings.HasPrefix(m.files[name], "#!") {
			perm = 0o755
		}
		a.File(name, perm, []byte(m.files[name]))
	}
}
