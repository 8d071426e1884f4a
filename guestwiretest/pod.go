package guestwiretest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/sandbox"
	"github.com/guestwire/guestwire/phase2"
)

// Shape is how a CNI plugin connects a pod.
type Shape int

const (
	// Veth is a veth with a /24 and a /64. The gateways are of these networks.
	Veth Shape = iota

	// Calico is a veth with a /32 and a /128. The gateways are on the link: 169.254.1.1 by
	// proxy_arp, and a link-local address.
	Calico

	// Terway is a veth with a /32 and a /128. The gateways are onlink: 169.254.1.1 and fe80::1,
	// with permanent neighbours.
	Terway

	// Macvlan is a macvlan in mode bridge with a /24 and a /64. The gateways are of these
	// networks. infra.Bridge refuses it.
	Macvlan
)

var shapes = map[Shape]struct {
	name   string
	create func(pod, world lab.Namespace) error
}{
	Veth:    {"Veth", lab.Veth},
	Calico:  {"Calico", lab.Calico},
	Terway:  {"Terway", lab.Terway},
	Macvlan: {"Macvlan", lab.Macvlan},
}

func (s Shape) String() string { return shapes[s].name }

// Port is the TCP port at which the world and every guest answer, at all their addresses. They send the line
// "world sees 10.244.1.7:40312", or "guest sees ...", and then return what they receive.
const Port = 8000

// Namespace is a network namespace that ends with the test.
type Namespace struct {
	NetNS      *os.File
	IPv4, IPv6 netip.Addr // an address of each family

	t   testing.TB
	lab lab.Namespace
}

// Pod is a pod's namespace as a CNI plugin left it.
type Pod struct {
	Namespace
	NIC   string      // eth0, with an MTU of 1450
	State string      // a path where nothing is yet
	Owner infra.Owner // a user without an account; root, if there is no other user
	World *Namespace  // the pod's gateway, with addresses beyond it
}

// NewPod creates a pod with both families and a world outside. It skips the test if there can be no namespace or tap,
// or if the kernel lacks the kind of link.
func NewPod(t testing.TB, s Shape) *Pod {
	t.Helper()
	shape, ok := shapes[s]
	if !ok {
		t.Fatalf("pod: %d is none of the shapes", s)
	}
	switch err := sandbox.Entered(); {
	case errors.Is(err, sandbox.ErrNotEntered):
		t.Fatal("TestMain of this package has to call guestwiretest.Main(m)")
	case err != nil:
		skip(t, "network namespaces: "+err.Error())
	}
	device, err := os.OpenFile(tap.Device, os.O_RDWR, 0)
	if err != nil {
		skip(t, fmt.Sprintf("taps: %v: run the test as root, or chmod 0666 %s (modprobe tun if there is none)", err, tap.Device))
	}
	device.Close()

	dir, err := os.MkdirTemp(sandbox.Dir(), "pod-")
	if err == nil {
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		err = os.Chmod(dir, 0o755) // the launcher reads the record in it
	}
	if err != nil {
		t.Fatal(err)
	}
	world := newNamespace(t, lab.Beyond4, lab.Beyond6)
	p := &Pod{Namespace: *newNamespace(t, lab.Pod4, lab.Pod6), NIC: lab.NIC, State: filepath.Join(dir, "vm"), World: world}
	p.Owner = infra.Owner{Root: true}
	if !sandbox.OneUser() {
		p.Owner = infra.Owner{UID: lab.User, GID: lab.User}
	}
	if err := errors.Join(world.lab.World(), shape.create(p.lab, world.lab)); errors.Is(err, lab.ErrNoKind) {
		skip(t, fmt.Sprintf("pod of the shape %v: %v", s, err))
	} else if err != nil {
		t.Fatalf("pod of the shape %v: %v", s, err)
	}
	answers, err := world.lab.Answer("world", fmt.Sprintf(":%d", Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(answers.Close)
	return p
}

func newNamespace(t testing.TB, ipv4, ipv6 netip.Addr) *Namespace {
	t.Helper()
	n, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.File.Close() })
	return &Namespace{NetNS: n.File, IPv4: ipv4, IPv6: ipv6, t: t, lab: n}
}

// Do calls f on a thread in the namespace. f's sockets and processes are in the namespace, its goroutines are not.
func (n *Namespace) Do(f func() error) error { return n.lab.Do(f) }

// Run runs a program in the namespace, and returns its standard output. A failure ends the test.
func (n *Namespace) Run(program string, args ...string) string {
	n.t.Helper()
	out, err := n.lab.Run(program, args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// Dump returns all of the namespace that a wiring could change, as ip(8), bridge(8), tc(8), nft(8) and /proc/sys/net
// show it once the kernel has settled. If nothing was changed, two dumps are equal. Without those programs the test is
// skipped.
func (n *Namespace) Dump() string {
	n.t.Helper()
	text, err := n.lab.Settled()
	if errors.Is(err, lab.ErrNoProgram) {
		skip(n.t, err.Error())
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return lab.Stable(text)
}

// Diff returns the lines in which two dumps differ, below the command whose output they are. Lines that are gone begin
// with -, new ones with +. Empty: the dumps are equal.
func Diff(before, after string) string { return lab.Diff(before, after) }

// Ask connects from the namespace, and returns the line that the other side sends, see [Port].
func (n *Namespace) Ask(ctx context.Context, to netip.AddrPort) (string, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	return n.lab.Ask(ctx, to.String())
}

// Serve runs phase2 until the test ends. It returns when the guest is served.
func (p *Pod) Serve() {
	p.t.Helper()
	vm, err := phase2.Open(p.State)
	if err != nil {
		p.t.Fatal(err)
	}
	answers := make(chan error, 2) // one when the guest is answered, one at the end
	vm.Notify = func(e phase2.Event) {
		if e.Kind == "ready" {
			answers <- nil
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { answers <- p.Do(func() error { return vm.Serve(ctx) }) }() // not Start, as the pod is another namespace
	if err := <-answers; err != nil {
		cancel()
		p.t.Fatalf("phase2.Serve: %v", err)
	}
	p.t.Cleanup(func() {
		cancel()
		if err := <-answers; err != nil {
			p.t.Errorf("phase2.Serve: %v", err)
		}
	})
}
