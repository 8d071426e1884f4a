package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// LibvirtUser returns the user that runs the guests of Debian's libvirt.
func LibvirtUser() (uid, gid int, err error) {
	u, err := user.Lookup("libvirt-qemu")
	if err != nil {
		return 0, 0, fmt.Errorf("libvirt's user: %w", err)
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		return 0, 0, fmt.Errorf("libvirt's user: %w", err)
	}
	gid, err = strconv.Atoi(u.Gid)
	if err != nil {
		return 0, 0, fmt.Errorf("libvirt's user: %w", err)
	}
	return uid, gid, nil
}

// Missing returns an error if this machine cannot boot a guest, because root, a program or a file of install.sh is
// missing. A test may skip then.
func Missing() error {
	var missing []error
	if os.Geteuid() != 0 {
		missing = append(missing, errors.New("not root"))
	}
	for _, program := range []string{"qemu-system-x86_64", "libvirtd", "virsh", "passt", "setpriv", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, err)
		}
	}
	for _, file := range []string{"kernel/lib/modules", autoconfKernel, "busybox/bin/busybox", "dhclient/sbin/dhclient", "libvirt/usr/sbin/libvirtd", backportVMM, seedMaker, uefiCode, uefiVars, grubImage} {
		if _, err := os.Stat(unpacked.Path(file)); err != nil {
			missing = append(missing, err)
		}
	}
	for _, m := range managers {
		for file := range m.programs {
			if !filepath.IsAbs(file) {
				file = unpacked.Path(file)
			}
			if _, err := os.Stat(file); err != nil {
				missing = append(missing, err)
			}
		}
	}
	if _, err := kernelFile(BootClients); err != nil {
		missing = append(missing, err)
	}
	if _, err := os.Stat(tunDevice); err != nil {
		missing = append(missing, err)
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("no guest can be booted here, internal/rig/vm/install.sh brings what it needs: %w", errors.Join(missing...))
}

const tunDevice = "/dev/net/tun"
