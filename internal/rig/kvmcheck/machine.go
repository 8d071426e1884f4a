package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/rig/vm"
)

// checkKVM opens KVM, and asks for the version of its interface, which is 12 since 2007.
func checkKVM() error {
	const way = "switch virtualization on in the firmware or for this VM, and modprobe kvm_intel or kvm_amd; or EMULATED=1 make kvm-check, which tries everything else"
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: %s", err, way)
	}
	defer f.Close()
	const getVersion = 0xae00 // KVM_GET_API_VERSION of linux/kvm.h
	if version, err := unix.IoctlRetInt(int(f.Fd()), getVersion); err != nil || version != 12 {
		return fmt.Errorf("/dev/kvm has version %d, want 12 (%v): %s", version, err, way)
	}
	return nil
}

// machine returns a list of what the result may depend on.
func (c check) machine(ctx context.Context) string {
	var b strings.Builder
	item := func(name, value string) { fmt.Fprintf(&b, "- %s: %s\n", name, value) }
	cpu, _ := os.ReadFile("/proc/cpuinfo") // a machine without it shows nothing
	model, itself := "not known", "no"
	for line := range strings.Lines(string(cpu)) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name":
			model = strings.TrimSpace(value)
		case "flags":
			if strings.Contains(value+" ", " hypervisor ") {
				itself = "yes, so KVM is nested"
			}
		}
	}
	item("CPU", model)
	item("this machine is a VM itself", itself)
	modules, _ := filepath.Glob("/sys/module/kvm_*")
	for i, m := range modules {
		modules[i] = filepath.Base(m)
	}
	item("KVM", strings.Join(append(modules, "/dev/kvm "+opened(checkKVM())), ", "))
	_, err := os.Stat(vhostNet)
	item("vhost-net", opened(err))
	for _, program := range []string{"qemu-system-x86_64", vm.Firecracker, vm.CloudHypervisor} {
		if _, err := exec.LookPath(program); err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, program, "--version").Output()
		first, _, _ := strings.Cut(string(out), "\n")
		if err != nil {
			first += " " + err.Error()
		}
		item(program, first)
	}
	return b.String()
}

func opened(err error) string {
	if err != nil {
		return "cannot be used: " + err.Error()
	}
	return "is there"
}

// doctor returns what the agent's doctor says of the machine for the user of the VMMs.
func (c check) doctor(ctx context.Context) string {
	uid, gid, err := vm.LibvirtUser()
	if err != nil {
		return err.Error() + "\n"
	}
	// Its exit code says that it has found a fault, which it prints as well.
	out, err := exec.CommandContext(ctx, c.agent, "doctor", "-uid", strconv.Itoa(uid), "-gid", strconv.Itoa(gid)).CombinedOutput()
	if len(out) == 0 {
		return fmt.Sprintf("guestwire-agent doctor: %v\n", err)
	}
	return string(out)
}
