package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestHookState: a configuration without a state leaves the directory that hook has without -state.
func TestHookState(t *testing.T) {
	hook := verbs[slices.IndexFunc(verbs, func(v verb) bool { return v.Name == "hook" })]
	file := filepath.Join(t.TempDir(), "krun.json")
	for _, row := range []struct {
		config, want string
		flags        []string
	}{
		{`{"mtu": 1400}`, hookState, nil},
		{`{"state": "/run/vms"}`, "/run/vms", nil},
		{`{"state": "/run/vms"}`, "/run/other", []string{"-state", "/run/other"}},
	} {
		if err := os.WriteFile(file, []byte(row.config), 0o644); err != nil {
			t.Fatal(err)
		}
		o := new(options)
		flags := o.flagSet(hook)
		if err := flags.Parse(append(row.flags, "-nic", "eth0", "-config", file)); err != nil {
			t.Fatal(err)
		}
		if err := o.fill(t.Context(), flags); err != nil || o.State != row.want {
			t.Errorf("%s %q: -state is %q, %v; want %q", row.config, row.flags, o.State, err, row.want)
		}
	}
}
