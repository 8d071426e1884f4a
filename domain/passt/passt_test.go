package passt_test

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/internal/test/records"
)

func record(forwards ...cache.Forward) *cache.Record {
	r := records.Bridge()
	records.Passt(r, forwards...)
	return r
}

// cases are the command lines in testdata, with the names of their files.
var cases = map[string][]cache.Forward{
	"nothing-forwarded": nil,
	"ports": {
		{Protocol: "tcp", First: 80, Last: 80, Guest: 80},
		{Protocol: "udp", First: 53, Last: 53, Guest: 5353},
		{Protocol: "tcp", First: 443, Last: 443, Guest: 8443},
	},
	"ranges": {
		{Protocol: "tcp", First: 8000, Last: 8010, Guest: 8000},
		{Protocol: "udp", First: 9000, Last: 9001, Guest: 65534},
	},
	"all": {
		{Protocol: "tcp", First: 1, Last: 65535, Guest: 1},
		{Protocol: "udp", First: 1, Last: 65535, Guest: 1},
	},
}

func TestArgs(t *testing.T) {
	edits := records.Cases[struct{}]{}
	for name, forwards := range cases {
		edits[name] = func(r *cache.Record, _ *struct{}) { records.Passt(r, forwards...) }
	}
	records.Golden(t, ".txt", edits, func(t *testing.T, r *cache.Record, _ struct{}) string {
		args, err := passt.Args(r, "/run/guestwire/passt.sock")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(args, "\n") + "\n"
	})
}

// TestLongestSocket: the path may have as many bytes as a Unix socket's has.
func TestLongestSocket(t *testing.T) {
	if _, err := passt.Args(record(), "/"+strings.Repeat("s", 106)); err != nil {
		t.Error(err)
	}
}
