package vm

import (
	"os"
	"strings"
	"sync"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// Boot is the system that a guest boots.
type Boot int

const (
	// BootClients is Debian's kernel, with DHCP clients in user space on every NIC.
	BootClients Boot = iota
	// BootAutoconf is a kernel that configures eth0 itself before the first process: by DHCPv4
	// (ip=dhcp) and by router advertisements. The host name is that of the lease. Lease4 and Lease6 do
	// not work.
	BootAutoconf
	// BootNetworkd is Debian's kernel with systemd-networkd, which configures eth0 with DHCP, router advertisements and a
	// stable-privacy link-local address (RFC 7217). Lease4 and Lease6 do not work. Its log is /run/manager.
	BootNetworkd
	// BootNetworkManager is the same with NetworkManager and its default settings.
	BootNetworkManager
	// BootCloudInit is Debian's kernel with Debian's cloud-init, which reads the disk of Config.Seed and writes for
	// netplan. Netplan's generator makes files of systemd-networkd, which configures the network. There is no systemd, no
	// udev and no DHCP client. The logs are /run/manager and /run/cloud-init.out.
	BootCloudInit
	// BootNetwork boots from the network, by the ROM of the first NIC. The guest is returned as soon as
	// the VMM runs. Console has the firmware's output; Run does not work.
	BootNetwork
	// BootUEFI is BootNetwork by Debian's OVMF, which tries TFTP and HTTP by IPv4 and IPv6. For BootQEMU.
	BootUEFI
)

// hasSystem reports whether the guest boots a system of this package, not what the network has.
func (b Boot) hasSystem() bool { return b < BootNetwork }

// Firmware, relative to the cache.
const (
	uefiCode  = "firmware/usr/share/OVMF/OVMF_CODE_4M.fd"
	uefiVars  = "firmware/usr/share/OVMF/OVMF_VARS_4M.fd"
	grubImage = "firmware/usr/lib/grub/x86_64-efi/monolithic/grubnetx64.efi"
)

// GRUB returns Debian's GRUB for UEFI's network boot. It fetches grub/grub.cfg from where it comes.
func GRUB() ([]byte, error) { return os.ReadFile(unpacked.Path(grubImage)) }

// Memory is a guest's memory, in MiB.
const Memory = 256

// Config configures a guest for BootLibvirt and BootQEMU.
type Config struct {
	// NetNS is the network namespace in which the taps are. It may be closed after the boot.
	NetNS *os.File
	// UID and GID are the user that runs the VMM without capabilities, and that owns the taps. See
	// LibvirtUser.
	UID, GID int
	// Name is the guest's host name and the domain's name; empty: guest.
	Name string
	// Boot is the system that the guest boots.
	Boot Boot
	// Networkd are the files of /etc/systemd/network, for BootNetworkd; nil: one that asks DHCP and routers on eth0.
	Networkd map[string]string
	// Seed are the files of the NoCloud disk, for BootCloudInit.
	Seed map[string]string
	// Program is a program of this machine, which the guest has in /bin; empty: none.
	Program string
	// CPUs is the number of virtual CPUs; 0: one.
	CPUs int
	// Files are what QEMU inherits, from descriptor 3 on, under BootQEMU.
	Files []*os.File
	// Launcher is the start of a command line that ends with QEMU's, for BootQEMU: a program that runs QEMU.
	Launcher []string
	// PlugPorts is the number of devices that can be attached while the guest of BootLibvirt runs.
	PlugPorts int
	// KVM has KVM run the guest of BootQEMU, which is emulated otherwise.
	KVM bool
	// terminal: the VMM gets its console as standard input and output.
	terminal bool
	// Backport selects the libvirt of Debian's backports, which supports passt, and Debian 12's does not; or under
	// BootQEMU the QEMU of them. On Debian 13 the installed ones are as new, and run.
	Backport bool
	// VhostUser has the guest's memory shared, and selects the libvirt and the QEMU of Debian's backports and Debian
	// 13's passt.
	VhostUser bool
}

// Debian12 reports whether this machine's programs are those of Debian 12.
var Debian12 = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/etc/os-release")
	return err == nil && strings.Contains(string(text), `VERSION_ID="12"`)
})

// unpacked reports whether the guest needs newer programs than those that are installed.
func (c Config) unpacked() bool { return (c.Backport || c.VhostUser) && Debian12() }

func (c Config) name() string {
	if c.Name == "" {
		return "guest"
	}
	return c.Name
}

func (c Config) cpus() int { return max(c.CPUs, 1) }
