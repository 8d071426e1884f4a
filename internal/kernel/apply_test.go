package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
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
