package kernel

import (
	"testing"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft/nfttest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestCanOffload: the kernel reports whether it has flow tables, and nothing is left of the question. A look after the
// tables that are sent then need not read them back.
func TestCanOffload(t *testing.T) {
	nstest.Need(t, "nft")
	pod := nstest.New(t, "pod")
	want := nstest.HasFlowTables()
	names := netstate.Names{Table: nfttest.Table.Name}
	err := netns.Do(pod.File, func() error {
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		if _, err := n.Snapshot(names, nil, nil); err != nil {
			return err
		}
		if can, err := n.Tables.CanOffload(); can != want || err != nil {
			t.Errorf("flow tables: %t, %v, want %t", can, err, want)
		}
		if list := pod.Exec("nft", "list", "ruleset"); list != "" {
			t.Errorf("the question has left\n%s", list)
		}
		if err := n.Apply(t.Context(), []netstate.Op{netstate.TableSet{Table: nfttest.Table}}); err != nil {
			return err
		}
		asked := n.filter.Asked()
		if _, err := n.Snapshot(names, nil, nil); err != nil {
			return err
		}
		if n.filter.Asked()-asked > 1 {
			t.Error("the tables were read back")
		}
		// What sees each forwarded packet.
		for _, c := range []struct {
			line    string
			watched bool
		}{
			{"add chain inet guestwire-eth1 c { type filter hook forward priority 0; }", false},
			{"add chain inet other nat { type nat hook postrouting priority 0; }", false},
			{"add chain inet other in { type filter hook input priority 0; }", false},
			{"add chain inet other first { type filter hook prerouting priority 0; }", true},
		} {
			pod.Exec("nft", "add table inet guestwire-eth1; add table inet other; "+c.line)
			if watched, err := n.Tables.Watched(); watched != c.watched || err != nil {
				t.Errorf("%s: watched %t, %v", c.line, watched, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
