package resolvconf_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/resolvconf"
)

// TestParse: what the words of a line mean.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		text    string
		servers []string
		search  []string
		bad     []string
	}{
		{"", nil, nil, nil},
		{"nameserver 192.0.2.1\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n", []string{"192.0.2.1", "127.0.0.53", "fe80::1%eth0"}, nil, nil},
		{"# nameserver 192.0.2.1\n; nameserver 192.0.2.2\nnameserver\nnameserver none\noptions ndots:5\n", nil, nil, []string{"none"}},
		{"domain old.example\nsearch a.example b.example.\n", nil, []string{"a.example", "b.example."}, nil},
		{"search a.example\ndomain one.example two.example\n", nil, []string{"one.example"}, nil},
		{"\tsearch\ta.example\t b.example\r\nnameserver\t192.0.2.1 192.0.2.2\r\n", []string{"192.0.2.1"}, []string{"a.example", "b.example"}, nil},
		{"search .\nnameserver 192.0.2.1", []string{"192.0.2.1"}, []string{"."}, nil},
	} {
		var want cache.DNS
		for _, s := range c.servers {
			want.Servers = append(want.Servers, netip.MustParseAddr(s))
		}
		want.Search = c.search
		if got, bad := resolvconf.Parse([]byte(c.text)); !reflect.DeepEqual(got, want) || !slices.Equal(bad, c.bad) {
			t.Errorf("%q: %v without %q, want %v without %q", c.text, got, bad, want, c.bad)
		}
	}
}
