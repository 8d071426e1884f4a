package passt_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/records"
)

func record(forwards ...cache.Forward) *cache.Record {
	r := records.Bridge()
	records.Passt(r, forwards...)
	return r
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

// TestLongestSocket: the path may have as many bytes as a Unix socket's has.
func TestLongestSocket(t *testing.T) {
	if _, err := passt.Args(record(), "/"+strings.Repeat("s", 106)); err != nil {
		t.Error(err)
	}
}
