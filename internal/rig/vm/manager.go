package vm

import (
	"maps"
	"path/filepath"
	"slices"
)

// manager is a daemon that configures the network in a guest, instead of DHCP clients.
type manager struct {
	name     string
	programs map[string]string // files in the cache, and where they are in the guest
	files    map[string]string // contents
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
	}
}

func (m manager) addFiles(a *archive) {
	done := map[string]bool{"etc": true, "var/lib": true}
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		var missing []string
		for dir := filepath.Dir(name); !done[dir]; dir = filepath.Dir(dir) {
			missing, done[dir] = append(missing, dir), true
		}
		for _, dir := range slices.Backward(missing) {
			a.dir(dir)
		}
		a.file(name, 0o644, []byte(m.files[name]))
	}
}
