package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/internal/rig/vm"
)

// report tries each VMM with each binding, and prints the report. The error says that something failed.
func (c check) report(ctx context.Context, to io.Writer) error {
	if err := vm.Missing(); err != nil {
		return err
	}
	rows := "| VMM | binding | result |\n| --- | --- | --- |\n"
	var details strings.Builder
	passed, failed := 0, 0
	for _, v := range vmms {
		if why := v.missing(); why != "" {
			rows += fmt.Sprintf("| %s | all | %s |\n", v.name, why)
			continue
		}
		for _, b := range bindings {
			fmt.Fprintf(os.Stderr, "%s, %s: ", v.name, b.Kind())
			what, err := c.try(ctx, v, b)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			switch {
			case err != nil:
				failed++
				what = "**failed**"
				fmt.Fprintf(&details, "\n%s, %s:\n\n```\n%v\n```\n", v.name, b.Kind(), err)
			case strings.HasPrefix(what, "passed"):
				passed++
			}
			fmt.Fprintln(os.Stderr, what)
			rows += fmt.Sprintf("| %s | %s | %s |\n", v.name, b.Kind(), what)
		}
	}
	how := "on KVM"
	if c.emulated {
		how = "emulated, without KVM"
	}
	_, err := fmt.Fprintf(to, "# kvm-check: %s, %d passed, %d failed\n\n%s%s\n%s\n```\n%s```\n", how, passed, failed, rows, details.String(), c.machine(ctx), c.doctor(ctx))
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d guests failed", failed, passed+failed)
	}
	return err
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
		return fmt.Sprintf("agent doctor: %v\n", err)
	}
	return string(out)
}
