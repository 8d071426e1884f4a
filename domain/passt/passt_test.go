package passt_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/internal/test/golden"
)

func record(forwards ...cache.Forward) *cache.Record {
	return &cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingPasst, Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450, Passt: &cache.Passt{Forwards: forwards},
	}
}

// cases are the command lines in testdata, with the names of their files.
var cases = []struct {
	name     string
	forwards []cache.Forward
}{
	{"nothing-forwarded", nil},
	{"ports", []cache.Forward{
		{Protocol: "tcp", First: 80, Last: 80, Guest: 80},
		{Protocol: "udp", First: 53, Last: 53, Guest: 5353},
		{Protocol: "tcp", First: 443, Last: 443, Guest: 8443},
	}},
	{"ranges", []cache.Forward{
		{Protocol: "tcp", First: 8000, Last: 8010, Guest: 8000},
		{Protocol: "udp", First: 9000, Last: 9001, Guest: 65534},
	}},
	{"all", []cache.Forward{
		{Protocol: "tcp", First: 1, Last: 65535, Guest: 1},
		{Protocol: "udp", First: 1, Last: 65535, Guest: 1},
	}},
}

func TestArgs(t *testing.T) {
	var files []string
	for _, c := range cases {
		file := c.name + ".txt"
		files = append(files, file)
		t.Run(c.name, func(t *testing.T) {
			rec := record(c.forwards...)
			args, err := passt.Args(rec, "/run/guestwire/passt.sock")
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(rec, record(c.forwards...)) {
				t.Errorf("the record is %+v", *rec)
			}
			got := strings.Join(args, "\n") + "\n"
			golden.Compare(t, file, got)
		})
	}
	golden.Only(t, ".txt", files...)
}

func TestErrors(t *testing.T) {
	invalid, other := record(), record()
	invalid.MTU = 1
	other.Binding, other.Tap, other.Passt = cache.BindingBridge, "eth0-tap", nil
	for _, c := range []struct {
		rec                 *cache.Record
		socket, field, text string
	}{
		{invalid, "/s", "mtu", "record of interface"},
		{other, "/s", "binding", "needs no passt"},
		{record(), "", "socket", "missing"},
		{record(), "/" + strings.Repeat("s", 107), "socket", "108 bytes, want at most 107"},
	} {
		args, err := passt.Args(c.rec, c.socket)
		var field *cache.FieldError
		if args != nil || !errors.As(err, &field) || field.Field != c.field || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, %v; want an error of %s with %q", *c.rec, args, err, c.field, c.text)
		}
	}
	if _, err := passt.Args(record(), "/"+strings.Repeat("s", 106)); err != nil {
		t.Error(err)
	}
}
