package qemu_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/records"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// namedNICs are the names of NICs that Setup accepts, of each class of first and later characters, and those that look
// like an id that is made of another one.
func namedNICs(t *testing.T) (names []string) {
	t.Helper()
	for _, first := range []string{"a", "Z", "0", "9", "_", "-", "."} {
		for _, rest := range []string{"", "a", "Z", "0", "_", "-", ".", "net", "1.5", "-netdev", ".netdev", "-netdev-netdev", "x-very-long-na"} {
			if syntax.CheckLinkName(first+rest) == nil {
				names = append(names, first+rest)
			}
		}
	}
	if len(names) < 60 {
		t.Fatalf("Setup accepts %q alone", names)
	}
	return names
}

// TestIDs: QEMU starts with NICs of any names that Setup accepts, and knows each device and each netdev by an id of its
// own. It can set the link of each one.
func TestIDs(t *testing.T) {
	names := namedNICs(t)
	var described []cache.Record
	for _, name := range names {
		r := records.Bridge()
		records.Slirp(r)
		r.Name = name
		described = append(described, *r)
	}
	aliased := records.Bridge()
	records.Slirp(aliased)
	aliased.Name, aliased.Device.Alias = "eth9", "_blue"
	described = append(described, *aliased)
	if _, _, err := qemu.Args(described, 3, noTap); err != nil {
		t.Fatal(err)
	}
	nstest.Need(t, "qemu-system-x86_64")
	ids := map[any]string{}
	for some := range slices.Chunk(described, 25) { // q35 has room for 29
		args, _, err := qemu.Args(some, 3, noTap)
		if err != nil {
			t.Fatal(err)
		}
		var commands strings.Builder
		for _, r := range some {
			nic, err := qemu.NewNIC(&r, qemu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range []any{nic.Device["id"], nic.Netdev["id"]} {
				if other := ids[id]; other != "" {
					t.Errorf("NICs %s and %s have the id %s", other, r.Name, id)
				}
				ids[id] = r.Name
			}
			fmt.Fprintf(&commands, "set_link %s off\n", nic.Device["id"])
		}
		cmd := exec.Command("qemu-system-x86_64", append([]string{"-M", "q35", "-accel", "tcg", "-nodefaults", "-display", "none", "-S", "-monitor", "stdio"}, args...)...)
		cmd.Stdin = strings.NewReader(commands.String() + "quit\n")
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "Error") {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

func noTap(cache.Record) ([]io.Closer, error) { return nil, nil }

// TestSameID: two NICs with one id are refused, and another alias is the way out.
func TestSameID(t *testing.T) {
	one, two := records.Bridge(), records.Bridge()
	records.Slirp(one)
	records.Slirp(two)
	one.Name, two.Name, two.Device.Alias = "eth0", "eth1", "eth0"
	args := func() error {
		_, _, err := qemu.Args([]cache.Record{*one, *two}, 3, noTap)
		return err
	}
	var field *cache.FieldError
	if err := args(); !errors.As(err, &field) || field.Field != "device.alias" || !strings.Contains(err.Error(), "NICs eth0 and eth1") {
		t.Errorf("%v", err)
	}
	two.Device.Alias = "eth2"
	if err := args(); err != nil {
		t.Error(err)
	}
}
