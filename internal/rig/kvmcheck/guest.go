package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/cloudhypervisor"
	"github.com/guestwire/guestwire/domain/firecracker"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
	"github.com/guestwire/guestwire/phase2"
)

const (
	guestName = "guest1"
	vhostNet  = "/dev/vhost-net"
	vhost     = "vhost"
)

// vmm is what runs a guest.
type vmm struct {
	name, program string
	driver        string // of cache.Device
	boot          func(context.Context, vm.Config, *cache.Record) (*vm.Guest, error)
}

var vmms = []vmm{
	{"QEMU", "qemu-system-x86_64", "", bootQEMU},
	{"QEMU, vhost-net", "qemu-system-x86_64", vhost, bootQEMU},
	{"Firecracker", vm.Firecracker, "", func(ctx context.Context, cfg vm.Config, r *cache.Record) (*vm.Guest, error) {
		nic, err := firecracker.NewNetworkInterface(r)
		if err != nil {
			return nil, err
		}
		return vm.BootFirecracker(ctx, cfg, nic)
	}},
	{"Cloud Hypervisor", vm.CloudHypervisor, "", func(ctx context.Context, cfg vm.Config, r *cache.Record) (*vm.Guest, error) {
		nic, err := cloudhypervisor.NewNet(r, cloudhypervisor.Options{VCPUs: 1})
		if err != nil {
			return nil, err
		}
		return vm.BootCloudHypervisor(ctx, cfg, nic)
	}},
}

func bootQEMU(ctx context.Context, cfg vm.Config, r *cache.Record) (*vm.Guest, error) {
	nic, err := qemu.NewNIC(r, qemu.Options{Vhost: r.Device.Driver == vhost})
	if err != nil {
		return nil, err
	}
	return vm.BootQEMU(ctx, cfg, nic)
}

// missing says why the VMM cannot run here; empty: nothing is known. install.sh brings QEMU.
func (v vmm) missing() string {
	if v.driver == vhost {
		if _, err := os.Stat(vhostNet); err != nil {
			return "not run: there is no " + vhostNet + ": modprobe vhost_net"
		}
	} else if _, err := exec.LookPath(v.program); err != nil && v.program != vmms[0].program {
		return "not run: " + v.program + " is not in PATH"
	}
	return ""
}

// check is a call of the program.
type check struct {
	emulated bool
	only     string
	agent    string
}

// try wires a pod of its own, boots a guest, tests it, and takes the wiring down. It returns a row's result.
func (c check) try(ctx context.Context, v vmm, b infra.Binding) (what string, err error) {
	limit := time.Minute
	if c.emulated {
		limit = 3 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pod, err := lab.New()
	if err != nil {
		return "", err
	}
	defer pod.File.Close()
	world, err := lab.New()
	if err != nil {
		return "", err
	}
	defer world.File.Close()
	if err := errors.Join(world.World(), lab.Veth(pod, world)); err != nil {
		return "", fmt.Errorf("the pod's network: %w", err)
	}
	before, err := pod.Settled()
	if err != nil {
		return "", err
	}
	uid, gid, err := vm.LibvirtUser()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "guestwire-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the responder reads the record
		return "", err
	}
	nic := phase1.NIC{NetNS: pod.File, Name: lab.NIC}
	spec := infra.Spec{
		Binding: b, Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)}, State: filepath.Join(dir, "vm1"),
		DNS: &cache.DNS{Servers: []netip.Addr{lab.Beyond4, lab.Beyond6}}, Device: cache.Device{Driver: v.driver},
	}
	if c.only != "" && c.only != string(b.Kind()) {
		preview, err := nic.Plan(ctx, spec)
		return fmt.Sprintf("planned, %d operations", len(preview.Steps)), err
	}
	record, err := nic.Setup(ctx, spec)
	if err != nil {
		return "", err
	}
	var booted time.Duration
	err = withResponder(pod.File, spec, func() (err error) {
		started := time.Now()
		g, err := v.boot(ctx, vm.Config{NetNS: pod.File, UID: uid, GID: gid, Name: guestName, KVM: !c.emulated}, &record)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Destroy()) }()
		booted = time.Since(started)
		if err := checkGuest(ctx, g, world, record); err != nil {
			return err
		}
		return nic.Check(ctx)
	})
	// Also after a fault, and when the time is over.
	if downErr := nic.Teardown(context.WithoutCancel(ctx), phase1.TeardownOptions{CutOff: err != nil}); downErr != nil {
		return "", errors.Join(err, downErr)
	}
	if after, settleErr := pod.Settled(); settleErr != nil || after != before {
		err = errors.Join(err, settleErr, fmt.Errorf("the pod is not as it was:\n%s", lab.Diff(before, after)))
	}
	return fmt.Sprintf("passed, ready after %.1f s", booted.Seconds()), err
}

// checkGuest checks the guest's leases and MTU, and that the guest reaches the world, and the world the guest.
func checkGuest(ctx context.Context, g *vm.Guest, world lab.Namespace, r cache.Record) error {
	if _, err := g.Lease4(ctx, lab.NIC); err != nil {
		return fmt.Errorf("DHCPv4: %w", err)
	}
	if _, err := g.Lease6(ctx, lab.NIC); err != nil {
		return fmt.Errorf("DHCPv6: %w", err)
	}
	mtu, err := g.Run(ctx, "cat /sys/class/net/eth0/mtu")
	if err != nil || strings.TrimSpace(mtu) != fmt.Sprint(r.MTU) {
		return fmt.Errorf("the guest's MTU is %q, want %d (%v)", mtu, r.MTU, err)
	}
	for _, to := range []netip.Addr{lab.Gateway4, lab.Gateway6, lab.Beyond4, lab.Beyond6} {
		if err := g.Ping(ctx, to); err != nil {
			return fmt.Errorf("guest to %v: %w", to, err)
		}
	}
	for _, to := range []netip.Addr{lab.Pod4, lab.Pod6} {
		if _, err := world.Ping(ctx, to); err != nil {
			return fmt.Errorf("world to %v: %w", to, err)
		}
		answer, err := world.Ask(ctx, netip.AddrPortFrom(to, vm.AnswerPort).String())
		if err != nil || !strings.Contains(answer, guestName) {
			return fmt.Errorf("world to %v by TCP: %q (%v), want %s to answer", to, answer, err, guestName)
		}
	}
	return nil
}

// serveCommand is the argument with which this program runs as the responder.
const serveCommand = "serve-as-launcher"

func serve(state string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	guest, err := phase2.Open(state)
	if err != nil {
		return err
	}
	guest.Notify = func(e phase2.Event) {
		if e.Kind == "ready" {
			fmt.Println(e.Kind)
		}
	}
	return guest.Serve(ctx)
}

// withResponder calls f while this program serves the guest in the namespace, as the owner and without capabilities.
func withResponder(ns *os.File, spec infra.Spec, f func() error) error {
	cmd := exec.Command("/proc/self/exe", serveCommand, spec.State)
	var log strings.Builder
	cmd.Stderr = &log
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := launch.Start(cmd, ns, spec.Owner); err != nil {
		return err
	}
	if _, err = io.ReadFull(ready, make([]byte, len("ready"))); err == nil {
		err = f()
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	if endErr := cmd.Wait(); endErr != nil {
		err = errors.Join(err, fmt.Errorf("the responder: %w: %s", endErr, log.String()))
	}
	return err
}
