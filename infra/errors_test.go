package infra_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/guestwire/guestwire/infra"
)

// TestErrors: a caller tells the errors apart by errors.Is, and a reader by their words.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err, is error
		text    string
	}{
		{infra.ErrWired, fs.ErrExist, "already wired"},
		{infra.ErrNoNIC, fs.ErrNotExist, "no such link"},
		{&infra.StepError{Step: 4, Steps: 17, Command: "ip link set eth0 up", Err: fs.ErrPermission}, fs.ErrPermission, "step 4 of 17: ip link set eth0 up: permission denied"},
		{&infra.RefusedError{NIC: "eth0", Binding: "bridge", Reason: "no MAC"}, nil, "bridge binding on eth0: no MAC"},
		{&infra.RefusedError{NIC: "eth0", Binding: "bridge", Reason: "no MAC", Instead: "redirect"}, nil, "bridge binding on eth0: no MAC; redirect would work"},
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
