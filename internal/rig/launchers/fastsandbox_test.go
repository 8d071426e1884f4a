package launchers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// The shape of fast-sandbox's Driver and Slot (internal/fastlet/network at aac0c2c), as far as the adapter needs them.
type (
	Driver interface {
		Prepare(ctx context.Context, slot *Slot) error
		Validate(ctx context.Context, slot *Slot) error
		Destroy(ctx context.Context, slot *Slot) error
	}
	Slot struct{ ID, NetNSPath, HostVeth, Address string }
)

// bridged is a Driver that connects namespaces to a bridge of the node.
type bridged struct {
	t    *testing.T
	node *nstest.Namespace
	made map[string]*nstest.Namespace
}

func (d bridged) Prepare(_ context.Context, slot *Slot) error {
	ns := nstest.New(d.t, slot.ID)
	d.made[slot.ID], slot.NetNSPath = ns, ns.Path()
	d.node.IP("link add " + slot.HostVeth + " type veth peer name eth0 netns " + ns.Name)
	d.node.IP("link set " + slot.HostVeth + " master fsb0 up")
	ns.IP("addr add " + slot.Address + " dev eth0")
	ns.IP("link set eth0 up")
	ns.IP("route add default via 172.30.0.1")
	return nil
}

func (d bridged) Validate(_ context.Context, slot *Slot) error {
	_, err := os.Stat(slot.NetNSPath)
	return err
}

func (d bridged) Destroy(_ context.Context, slot *Slot) error {
	if ns := d.made[slot.ID]; ns != nil {
		ns.End()
		delete(d.made, slot.ID)
	}
	return nil
}

// TestFastSandbox calls the adapter as fast-sandbox's Manager calls its Driver, for two slots. Their guests have the
// same addresses, are reached at the slot's, and do not reach each other.
func TestFastSandbox(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the tap is another user's")
	node := nstest.New(t, "node")
	node.IP("link add fsb0 type bridge")
	node.IP("addr add 172.30.0.1/24 dev fsb0")
	node.IP("link set fsb0 up")
	node.Listen("node", "172.30.0.1:8000")
	dir := filepath.Join(nstest.Dir(t), "guestwire")
	driver := bridged{t, node, map[string]*nstest.Namespace{}}
	adapter := Driver(WithTap{driver, infra.Owner{UID: 107, GID: 107}, dir})
	onNode := func(f func() error) error { return netns.Do(node.File, f) }
	slots := []*Slot{
		{ID: "slot-1", HostVeth: "fh1", Address: "172.30.0.2/24"},
		{ID: "slot-2", HostVeth: "fh2", Address: "172.30.0.3/24"},
	}
	var guests []*guest.Guest
	for _, slot := range slots {
		err := onNode(func() error {
			return errors.Join(adapter.Prepare(t.Context(), slot), adapter.Validate(t.Context(), slot))
		})
		if err != nil {
			t.Fatal(err)
		}
		g := boot(t, driver.made[slot.ID], "vmtap0", "02:66:73:62:00:01", "10.0.2.2/24")
		if _, err := g.Run("ip", "route", "add", "default", "via", "10.0.2.1"); err != nil {
			t.Fatal(err)
		}
		if err := g.ListenTCP(9000); err != nil {
			t.Fatal(err)
		}
		if said, err := node.Ask(netip.MustParsePrefix(slot.Address).Addr().String() + ":9000"); err != nil {
			t.Errorf("the sandbox of %s does not answer: %q, %v", slot.ID, said, err)
		}
		c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort("172.30.0.1:8000"))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		guests = append(guests, g)
	}
	// Nobody answers ARP for the other slot's address, so the namespace reports it as unreachable.
	if c, err := guests[1].DialTCP(t.Context(), netip.MustParseAddrPort("172.30.0.2:9000")); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("a sandbox connects to the other sandbox: %v, %v", c, err)
	}
	for _, g := range guests {
		g.Close()
	}
	driver.made["slot-1"].IP("link delete vmtap0")
	if err := onNode(func() error { return adapter.Validate(t.Context(), slots[0]) }); err == nil {
		t.Error("Validate does not miss the tap")
	}
	for _, slot := range []*Slot{slots[0], slots[1], slots[1]} { // the last one again: Destroy was interrupted
		if err := onNode(func() error { return adapter.Destroy(t.Context(), slot) }); err != nil {
			t.Error(fmt.Errorf("destroy %s: %w", slot.ID, err))
		}
	}
	if left, err := phase1.List(t.Context(), dir); err != nil || len(left) > 0 {
		t.Errorf("wirings are left: %v, %v", left, err)
	}
}
