package infra_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"testing"

	"github.com/guestwire/guestwire/infra"
)

// TestErrors: a caller distinguishes the errors by errors.Is, and a reader by their words.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err, is error
		text    string
	}{
		{infra.ErrWired, fs.ErrExist, "already wired"},
		{infra.ErrNoNIC, fs.ErrNotExist, "no such link"},
		{&infra.StepError{Step: 4, Steps: 17, Command: "ip link set eth0 up", Err: fs.ErrPermission}, fs.ErrPermission, "step 4 of 17: ip link set eth0 up: permission denied"},
		{&infra.RefusedError{NIC: "eth0", Binding: "bridge", Reason: "no MAC"}, nil, "bridge binding: no MAC"},
		{&infra.RefusedError{NIC: "eth0", Binding: "bridge", Reason: "no MAC", Instead: "redirect"}, nil, "bridge binding: no MAC; redirect would work"},
	} {
		if c.err.Error() != c.text {
			t.Errorf("have %q, want %q", c.err, c.text)
		}
		if c.is != nil && !errors.Is(c.err, c.is) {
			t.Errorf("%v is no %v", c.err, c.is)
		}
		if errors.Is(c.err, fs.ErrClosed) {
			t.Errorf("%v is an fs.ErrClosed", c.err)
		}
	}
}

// TestJSON: what a program reads has no null, and no field that is not there.
func TestJSON(t *testing.T) {
	for want, value := range map[string]any{
		`{"kind":"link-set","link":"eth0","command":"ip link set eth0 up"}`: infra.Step{Kind: "link-set", Link: "eth0", Command: "ip link set eth0 up"},
		`{"step":4,"steps":17,"kind":"link-set","link":"eth0","command":"ip link set eth0 up","error":"permission denied"}`: &infra.StepError{
			Step: 4, Steps: 17, Kind: "link-set", Link: "eth0", Command: "ip link set eth0 up", Err: fs.ErrPermission},
		`{"nic":"eth0","binding":"bridge","reason":"no MAC"}`:                      &infra.RefusedError{NIC: "eth0", Binding: "bridge", Reason: "no MAC"},
		`{"nic":"eth0","binding":"bridge","reason":"no MAC","instead":"redirect"}`: &infra.RefusedError{NIC: "eth0", Binding: "bridge", Reason: "no MAC", Instead: "redirect"},
	} {
		if have, err := json.Marshal(value); err != nil || string(have) != want {
			t.Errorf("have %s, %v\nwant %s", have, err, want)
		}
	}
}
