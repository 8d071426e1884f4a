package phase1_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

// The privileged side before the machine starts. A Setup that was interrupted is called again.
func ExampleNIC_Setup() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	if err := os.MkdirAll("/run/guestwire", 0o755); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	_, err = nic.Setup(ctx, infra.Spec{
		Binding: infra.Bridge{},
		Owner:   infra.Owner{UID: 107, GID: 107},
		State:   "/run/guestwire/vm1",
		Options: cache.Options{
			Hostname: "vm1",
			DHCPv4:   map[uint8]cache.Data{43: "\x01\x02", 252: "http://wpad/x"},
		},
	})
	var refused *infra.RefusedError
	if errors.As(err, &refused) && refused.Instead != "" {
		log.Fatalf("%v: try %s", err, refused.Instead)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// Plan shows what Setup would do, for an operator to read before it is done.
func ExampleNIC_Plan() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	preview, err := nic.Plan(context.Background(), infra.Spec{
		Binding: infra.Auto{},
		Owner:   infra.Owner{UID: 107},
		State:   "/run/guestwire/vm1",
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, refused := range preview.Refused {
		fmt.Printf("not %s: %s\n", refused.Binding, refused.Reason)
	}
	for _, step := range preview.Steps {
		fmt.Println(step.Command)
	}
	fmt.Println("the guest has the MAC", preview.Record.MAC)
}

// What Check finds, Setup repairs, with the configuration of before.
func ExampleNIC_Check() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	err = phase1.NIC{NetNS: ns, Name: "eth0"}.Check(context.Background())
	var drift *phase1.DriftError
	switch {
	case errors.As(err, &drift):
		fmt.Println("repair:", drift.Repair)
	case errors.Is(err, phase1.ErrNotWired):
		fmt.Println("there was no Setup")
	case err != nil:
		log.Fatal(err)
	}
}

// What an operator wants to see of one guest.
func ExampleNIC_Status() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	report, err := phase1.NIC{NetNS: ns, Name: "eth0"}.Status(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Binding, "since", report.Since, "as wired:", report.Drift == nil)
	for _, d := range report.Drops {
		if d.Packets > 0 {
			fmt.Println(d.Packets, "packets:", d.Meaning)
		}
	}
}

// The guest's TLS arrives at a proxy in the namespace, which listens at the gateway's port. The counters say how many
// connections did.
func ExampleNIC_Counters() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	ctx := context.Background()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	_, err = nic.Setup(ctx, infra.Spec{
		Binding: infra.Routed{},
		Owner:   infra.Owner{UID: 107},
		State:   "/run/guestwire/vm1",
		Egress: []infra.Egress{
			{To: "all", Ports: infra.Ports{First: 443}, Divert: netip.AddrPortFrom(netip.Addr{}, 15443)},
			{To: "resolvers", Ports: infra.Ports{First: 53, Protocol: "udp"}},
			{To: "all", Refuse: true},
		},
		DNS: &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("198.51.100.53")}},
	})
	if err != nil {
		log.Fatal(err)
	}
	counters, err := nic.Counters(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(*counters.Diverted, "connections to the proxy,", *counters.Opened, "to elsewhere")
	for _, d := range counters.Drops {
		if d.Packets > 0 {
			fmt.Println(d.Packets, "packets dropped:", d.Meaning)
		}
	}
}

// A DNS proxy allows what it has answered, before the guest gets the answer.
func ExampleNIC_Pin() {
	var nic phase1.NIC // whose Spec.Egress ends with "refuse all"
	answer, life := []netip.Addr{netip.MustParseAddr("198.51.100.9")}, 5*time.Minute
	err := nic.Pin(context.Background(), phase1.Pin{Addresses: answer, Ports: []infra.Ports{{First: 443}}, Life: life, Name: "registry.example"})
	var pins *phase1.PinError
	if errors.As(err, &pins) {
		fmt.Println("refused by an entry before the last:", pins.LeftOut)
	} else if err != nil {
		log.Fatal(err)
	}
}

// After the machine. The namespace may be gone already: that is looked up by Forget, and not concluded from a path
// that does not open.
func ExampleNIC_Teardown() {
	ctx := context.Background()
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if errors.Is(err, os.ErrNotExist) {
		err = phase1.Forget(ctx, phase1.Gone{State: "/run/guestwire/vm1", NIC: "eth0"})
		if errors.Is(err, phase1.ErrAlive) {
			log.Fatalf("the path is wrong: %v", err)
		}
	} else if err == nil {
		defer ns.Close()
		err = phase1.NIC{NetNS: ns, Name: "eth0"}.Teardown(ctx, phase1.TeardownOptions{})
	}
	if err != nil && !errors.Is(err, infra.ErrNoNIC) {
		log.Fatal(err)
	}
}

// An operator's view of the node.
func ExampleList() {
	wirings, err := phase1.List(context.Background(), phase1.DefaultDir)
	if err != nil {
		log.Fatal(err)
	}
	for _, w := range wirings {
		if len(w.FoundAt) == 0 {
			fmt.Println(w.NIC, "of a namespace that is gone; its record is in", w.State)
			continue
		}
		fmt.Println(w.NIC, "in", w.FoundAt[0], "has the binding", w.Binding, "since", w.Since)
	}
}

// FollowDrops reports live why a guest's packets do not pass.
func ExampleNIC_FollowDrops() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = phase1.NIC{NetNS: ns, Name: "eth0"}.FollowDrops(ctx, func(d phase1.Drop) {
		fmt.Println(d.Time.Format(time.TimeOnly), d.Reason, d.Text)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// FollowFlows logs what the guest opens, and how much it sends there.
func ExampleNIC_FollowFlows() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lines := json.NewEncoder(os.Stdout)
	err = phase1.NIC{NetNS: ns, Name: "eth0"}.FollowFlows(ctx, func(f phase1.Flow) {
		if f.ByGuest && f.Event == "end" {
			_ = lines.Encode(f)
		}
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A launcher in one call: the NIC is wired while QEMU runs, and QEMU has no privileges.
func ExampleNIC_While() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	spec := infra.Spec{Binding: infra.Auto{}, Owner: infra.Owner{UID: 107, GID: 107}}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err = nic.While(ctx, spec, func(r cache.Record) error {
		// A launcher with a responder starts itself here, and QEMU from there: see package phase2.
		vm := exec.Command("qemu-system-x86_64", "-netdev", "tap,id=net0,script=no,downscript=no,ifname="+r.Tap,
			"-device", "virtio-net-pci,netdev=net0,mac="+r.MAC.String())
		return launch.Run(ctx, vm, ns, spec.Owner)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A launcher with several NICs holds each of them for its life.
func ExampleNIC_Hold() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	ctx := context.Background()
	err = func() (failed error) {
		for _, name := range []string{"eth0", "net1"} {
			nic, release, err := phase1.NIC{NetNS: ns, Name: name}.Hold(ctx)
			if err != nil {
				return err // ErrHeld names the process
			}
			defer release()
			spec := infra.Spec{Binding: infra.Auto{}, Owner: infra.Owner{UID: 107}, State: "/run/guestwire/vm1"}
			if _, err := nic.Setup(ctx, spec); err != nil {
				return err
			}
			defer func() { failed = errors.Join(failed, nic.Teardown(ctx, phase1.TeardownOptions{CutOff: true})) }()
		}
		return nil // when the VM has ended
	}()
	if err != nil {
		log.Fatal(err)
	}
}

// A guest moves from one pod to another, and is active in one of them at each moment.
func ExampleNIC_Setup_moving() {
	ctx := context.Background()
	var source, target phase1.NIC // in their namespaces
	status, err := source.Status(ctx)
	if err != nil {
		log.Fatal(err)
	}
	spec := infra.Spec{Owner: infra.Owner{UID: 107}, State: "/run/guestwire/vm1"} // all else is in the record
	if _, err := target.Setup(ctx, spec, phase1.Moving{From: &status.Record, Standby: true}); err != nil {
		log.Fatal(err)
	}
	// The VMM has sent the guest's memory, and stops the guest.
	inactive, err := source.Deactivate(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := target.Activate(ctx, phase1.Other{Inactive: &inactive}); err != nil {
		log.Fatal(err)
	}
}

// Without a journal, the namespace comes back as far as the kernel still shows it.
func ExampleTeardownOptions_force() {
	ns, err := phase1.OpenNetNS("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	err = nic.Teardown(context.Background(), phase1.TeardownOptions{State: "/run/guestwire/vm1", Force: true})
	var left *phase1.LeftError
	if errors.As(err, &left) { // all else is done
		for _, what := range left.What {
			fmt.Println("not known:", what)
		}
		err = left.Err
	}
	if err != nil {
		log.Fatal(err)
	}
}
