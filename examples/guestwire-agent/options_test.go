package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/infra"
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

// TestFlagOverField: a flag takes precedence over its field, and what no flag names is the configuration's.
func TestFlagOverField(t *testing.T) {
	setup := verbs[slices.IndexFunc(verbs, func(v verb) bool { return v.Name == "setup" })]
	file := filepath.Join(t.TempDir(), "vm1.json")
	const config = `{"binding": {"bridge": {}}, "owner": {"uid": 107, "gid": 108}, "state": "/run/vm1", "for": "c1"}`
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	field := infra.Spec{Binding: infra.Bridge{}, Owner: infra.Owner{UID: 107, GID: 108}, State: "/run/vm1", For: "c1"}
	flag := infra.Spec{Binding: infra.Redirect{}, Owner: infra.Owner{UID: 109, GID: 110}, State: "/run/vm2", For: "c2"}
	for _, row := range []struct {
		flags []string
		want  infra.Spec
	}{
		{nil, field},
		{[]string{"-binding", "redirect", "-uid", "109", "-gid", "110", "-state", "/run/vm2", "-for", "c2"}, flag},
	} {
		o := new(options)
		flags := o.flagSet(setup)
		if err := flags.Parse(append(row.flags, "-nic", "eth0", "-config", file)); err != nil {
			t.Fatal(err)
		}
		if err := o.fill(t.Context(), flags); err != nil || !reflect.DeepEqual(o.Spec, row.want) {
			t.Errorf("%q: %+v, %v; want %+v", row.flags, o.Spec, err, row.want)
		}
	}
}
