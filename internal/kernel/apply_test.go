package kernel

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// unknown is an operation of a type that this package does not know.
type unknown struct{ netstate.Op }

func (unknown) String() string { return "unknown" }

// TestUnknown: an unknown operation is an error before the first operation is carried out.
func TestUnknown(t *testing.T) {
	for _, op := range []netstate.Op{
		unknown{netstate.LinkDel{}},
		netstate.TableSet{Table: firewall.Table{Family: "arp"}},
		netstate.TableDel{Family: "arp"},
	} {
		// The path leads out of /proc/sys to a file of the test.
		path := filepath.Join(t.TempDir(), "written")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := (&Namespace{}).Apply(t.Context(), []netstate.Op{netstate.SysctlSet{Path: "../.." + path, Value: "1"}, op})
		var step *infra.StepError
		if !errors.As(err, &step) || step.Step != 2 || step.Steps != 2 {
			t.Errorf("%v: have %v; want an error of step 2", op, err)
		}
		if written, err := os.ReadFile(path); err != nil || len(written) > 0 {
			t.Errorf("%v: step 1 was carried out: %q, %v", op, written, err)
		}
		if _, _, err := Encode([]netstate.Op{op}); err == nil {
			t.Errorf("%v: Encode knows it", op)
		}
	}
	if _, _, err := Encode([]netstate.Op{netstate.ConfSet{Name: "arp_announce"}}); err == nil {
		t.Error("Encode knows arp_announce")
	}
}

// TestBatchInParts: a batch of rtnetlink that the send buffer does not take goes in several calls, and each failure
// belongs to its operation.
func TestBatchInParts(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	var ops []netstate.Op
	for i := range 1000 {
		to := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		if i == 700 {
			to = netip.MustParsePrefix("10.0.0.1/24") // which has bits beside the prefix
		}
		ops = append(ops, netstate.RouteAdd{Route: netstate.Route{Link: 1, Destination: to, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC, Scope: unix.RT_SCOPE_LINK, Type: unix.RTN_UNICAST}})
	}
	err := inPod(pod, func(n *Namespace) error {
		n.route.Most = 4 << 10
		return n.Apply(context.Background(), ops)
	})
	if err == nil || !strings.Contains(err.Error(), "step 701 of 1000: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v; want the error of step 701 alone", err)
	}
	if routes := strings.Count(pod.IP("route show dev lo"), "\n"); routes != 999 {
		t.Errorf("%d routes, want 999", routes)
	}
}
