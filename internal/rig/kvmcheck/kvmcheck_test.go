package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// emulation is how long an emulated machine runs at most.
const emulation = 15 * time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serveCommand { // this program is the responder too
		main()
		return
	}
	leak.Allow(emulation)
	nstest.Main(m)
}

// report returns the report of a check that boots guests under redirect alone.
func report(t *testing.T) (string, error) {
	t.Helper()
	var b strings.Builder
	err := check{emulated: true, only: "redirect", agent: nstest.Program(t, "examples/guestwire-agent")}.report(t.Context(), &b)
	return b.String(), err
}

// TestEmulated makes a report without KVM: guests of QEMU, and of what stands in for Firecracker and Cloud Hypervisor.
// The stand-ins read what the VMMs are given, and boot an emulated guest by it.
func TestEmulated(t *testing.T) {
	vm.NeedGuest(t)
	dir := nstest.Dir(t)
	nstest.Run(t, "cp", "testdata/"+vm.Firecracker, "testdata/"+vm.CloudHypervisor, dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	text, err := report(t)
	if err != nil {
		t.Errorf("%v", err)
	}
	passed := 0
	for _, v := range vmms {
		if why := v.missing(); why != "" {
			if v.driver != vhost {
				t.Errorf("%s: %s", v.name, why)
			}
			continue
		}
		passed++
		for _, b := range bindings {
			want := "planned, "
			if b.Kind() == cache.BindingRedirect {
				want = "passed, ready after "
			}
			if row := fmt.Sprintf("\n| %s | %s | %s", v.name, b.Kind(), want); !strings.Contains(text, row) {
				t.Errorf("no row %q", row)
			}
		}
	}
	for _, want := range []string{
		fmt.Sprintf("# kvm-check: emulated, without KVM, %d passed, 0 failed\n", passed),
		"\n- firecracker: Firecracker v1.15.0 (a stand-in)\n", "\n- CPU: ", "\nok       redirect ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestFailed: a guest that does not boot is a failed row with the reason, and its pod is given back. The error is the
// program's exit code.
func TestFailed(t *testing.T) {
	vm.NeedGuest(t)
	before := vmms
	defer func() { vmms = before }()
	vmms = []vmm{{"a VMM", "true", "", func(context.Context, vm.Config, *cache.Record) (*vm.Guest, error) {
		return nil, errors.New("no guest today")
	}}}
	text, err := report(t)
	if err == nil || err.Error() != "1 of 1 guests failed" {
		t.Error(err)
	}
	for _, want := range []string{"0 passed, 1 failed\n", "\n| a VMM | redirect | **failed** |\n", "\na VMM, redirect:\n\n```\nno guest today\n```\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// TestPlan: -plan says what changes, and whether the machine has KVM. Where another device is in its place, the way out
// is to emulate.
func TestPlan(t *testing.T) {
	nstest.Need(t)
	nstest.NeedRoot(t, "the test mounts")
	const otherDevice = `if test -e /dev/kvm; then mount --bind /dev/null /dev/kvm; fi; exec "$0" "$@"`
	plan := func(flags ...string) (string, error) {
		line := append([]string{"-m", "sh", "-c", otherDevice, nstest.Program(t, "internal/rig/kvmcheck"), "-plan"}, flags...)
		out, err := exec.Command("unshare", line...).CombinedOutput()
		return string(out), err
	}
	if text, err := plan(); err == nil || !strings.Contains(text, "/dev/kvm") || !strings.Contains(text, "or EMULATED=1 make kvm-check") {
		t.Errorf("%v: %s", err, text)
	}
	text, err := plan("-emulated")
	if err != nil || !strings.Contains(text, "make kvm-check changes this machine:") || !strings.Contains(text, "\nQEMU               will run\n") {
		t.Errorf("%v: %s", err, text)
	}
	if text, err := plan("-only", "macvtap"); err == nil || !strings.Contains(text, "want bridge, masquerade, redirect or routed") {
		t.Errorf("%v: %s", err, text)
	}
}
