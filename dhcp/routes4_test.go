package dhcp

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
)

// RFC 3442; the order that udhcpc, dhclient, dhcpcd, networkd and NetworkManager install.
func TestDHCPv4Routes(t *testing.T) {
	route := func(dst, gw string) cache.Route {
		r := cache.Route{Destination: prefix(dst)}
		if gw != "" {
			r.Gateway = addr(gw)
		}
		return r
	}
	for _, c := range []struct {
		name            string
		address         string
		server, gateway string
		routes          []cache.Route
		mask            string
		want            string
	}{
		{"/32, gateway outside", "10.244.1.7/32", "169.254.1.1", "169.254.1.1",
			[]cache.Route{route("169.254.1.1/32", ""), route("0.0.0.0/0", "169.254.1.1")}, "ffffffff",
			"169.254.1.1/32>0.0.0.0 0.0.0.0/0>169.254.1.1"},
		{"a plain network", "10.0.2.2/24", "10.0.2.1", "10.0.2.1", []cache.Route{route("0.0.0.0/0", "10.0.2.1")}, "ffffff00", ""},
		{"a plain network, server outside", "10.0.2.2/24", "169.254.7.7", "10.0.2.1",
			[]cache.Route{route("169.254.7.7/32", ""), route("0.0.0.0/0", "10.0.2.1")}, "ffffff00",
			"169.254.7.7/32>0.0.0.0 0.0.0.0/0>10.0.2.1"},
		{"further routes", "10.0.2.2/24", "10.0.2.1", "10.0.2.1",
			[]cache.Route{route("192.168.7.0/25", ""), route("10.96.0.0/12", "10.0.2.9"), route("0.0.0.0/0", "10.0.2.1")}, "ffffff00",
			"192.168.7.0/25>0.0.0.0 10.96.0.0/12>10.0.2.9 0.0.0.0/0>10.0.2.1"},
		{"halves of a default route", "10.0.2.2/24", "10.0.2.1", "10.0.2.1",
			[]cache.Route{route("0.0.0.0/1", "10.0.2.1"), route("128.0.0.0/1", "10.0.2.1")}, "ffffff00",
			"0.0.0.0/1>10.0.2.1 128.0.0.0/1>10.0.2.1"},
		{"one half", "10.0.2.2/24", "10.0.2.1", "", []cache.Route{route("128.0.0.0/1", "10.0.2.1")}, "ffffff00", "128.0.0.0/1>10.0.2.1"},
		{"no default", "10.0.2.2/24", "10.0.2.1", "", []cache.Route{route("10.96.0.0/12", "10.0.2.9")}, "ffffff00",
			"10.96.0.0/12>10.0.2.9"},
		{"nothing behind", "10.0.2.2/24", "10.0.2.1", "", nil, "ffffff00", ""},
		{"a hop outside of the network", "10.0.2.2/24", "10.0.2.1", "10.0.2.1",
			[]cache.Route{route("10.7.7.7/32", ""), route("10.96.0.0/12", "10.7.7.7"), route("0.0.0.0/0", "10.0.2.1")}, "ffffff00",
			"10.7.7.7/32>0.0.0.0 10.96.0.0/12>10.7.7.7 0.0.0.0/0>10.0.2.1"},
		{"everything on the link", "10.0.2.2/24", "10.0.2.1", "", []cache.Route{route("0.0.0.0/0", "")}, "ffffff00", "0.0.0.0/0>0.0.0.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := newRecord()
			rec.IPv4 = &cache.IPv4{Address: prefix(c.address), Server: addr(c.server), Routes: c.routes}
			_, m := acked(t, rec, resolvConf, map[uint8][]byte{55: {1, 3, 121, 249}})
			var got []string
			for _, r := range m.ClasslessStaticRoute() {
				got = append(got, r.Dest.String()+">"+r.Router.String())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("option 121: %v, want %s", got, c.want)
			}
			if !bytes.Equal(m.Options[249], m.Options[121]) {
				t.Errorf("option 249 %x, 121 %x", m.Options[249], m.Options[121])
			}
			if m.SubnetMask().String() != c.mask {
				t.Errorf("mask %v, want %s", m.SubnetMask(), c.mask)
			}
			want := []net.IP(nil)
			if c.gateway != "" {
				want = []net.IP{addr(c.gateway).AsSlice()}
			}
			if fmt.Sprint(m.Router()) != fmt.Sprint(want) {
				t.Errorf("option 3 %v, want %v", m.Router(), want)
			}
		})
	}
}

// withStandIn is newRecord's, whose guest gets another router if it asks for no classless routes.
func withStandIn() cache.Record {
	rec := newRecord()
	rec.IPv4.StandIn = addr("10.244.1.6")
	rec.Neighbours = append(rec.Neighbours, cache.Neighbour{Address: rec.IPv4.StandIn, MAC: gatewayMAC})
	return rec
}

// The guest's parameter list decides which router and which network it gets. Each list but the first two is that of a
// real client.
func TestDHCPv4StandIn(t *testing.T) {
	const mask, router, routes = 1, 3, 121
	for _, c := range []struct {
		name  string
		list  []byte // option 55
		exact bool
	}{
		{"no list", nil, false},
		{"both forms of classless routes", []byte{1, 3, 121, 249}, true},
		{"Windows", []byte{1, 3, 6, 15, 31, 33, 43, 44, 46, 47, 119, 121, 249, 252}, true},
		{"Windows XP, 249 alone", []byte{1, 15, 3, 6, 44, 46, 47, 31, 33, 249, 43}, true},
		{"ISC dhclient, Debian's", []byte{1, 28, 2, 3, 15, 6, 119, 12, 44, 47, 26, 121, 42}, true},
		{"dhcpcd", []byte{1, 121, 3, 6, 12, 15, 26, 28, 33, 51, 54, 58, 59, 119}, true},
		{"udhcpc with -O staticroutes", []byte{1, 3, 6, 12, 15, 26, 28, 42, 119, 121}, true},
		{"systemd-networkd", []byte{1, 3, 6, 12, 15, 26, 33, 42, 119, 120, 121}, true},
		{"udhcpc", []byte{1, 3, 6, 12, 15, 26, 28, 42}, false},
		{"connman", []byte{1, 3, 26, 252, 42, 15, 6, 12}, false},
		{"Linux ip=dhcp", []byte{1, 3, 6, 12, 15, 17, 26, 40, 42}, false},
		{"iPXE", []byte{1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119, 128, 129, 130, 131, 132, 133, 134, 135, 175, 203}, false},
		{"OVMF, PXE", []byte{1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67, 97, 128, 129, 130, 131, 132, 133, 134, 135}, false},
		{"OVMF, HTTP", []byte{1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 235, 67, 97}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			options := map[uint8][]byte{}
			if c.list != nil {
				options[55] = c.list
			}
			ask := func(rec cache.Record, q client4) (reply, *dhcpv4.DHCPv4) {
				t.Helper()
				r, silent := ask(t, newResponder(t, rec, resolvConf), q.frame())
				if silent {
					t.Fatal("no answer")
				}
				return r, read4(t, r)
			}
			renew := map[uint8][]byte{54: addr("169.254.1.1").AsSlice(), 50: addr("10.244.1.7").AsSlice()}
			maps.Copy(renew, options)
			for _, q := range []client4{
				{kind: discover, options: options},
				{kind: request, options: renew},
				{kind: request, ciaddr: "10.244.1.7", options: options},
			} {
				got, m := ask(withStandIn(), q)
				if c.exact {
					if without, _ := ask(newRecord(), q); !bytes.Equal(got.payload, without.payload) {
						t.Errorf("%v: the answer differs from that of a record without a stand-in:\n%x\n%x", q.kind, got.payload, without.payload)
					}
					continue
				}
				if !bytes.Equal(m.Options[mask], []byte{255, 255, 255, 254}) || !bytes.Equal(m.Options[router], []byte{10, 244, 1, 6}) {
					t.Errorf("%v: mask %v, router %v; want 255.255.255.254 and 10.244.1.6", q.kind, m.SubnetMask(), m.Router())
				}
				if m.Options[routes] != nil || m.Options[249] != nil || m.Options[28] != nil {
					t.Errorf("%v: classless routes or a broadcast address: %v", q.kind, m)
				}
				if !m.YourIPAddr.Equal(net.IP{10, 244, 1, 7}) || !m.ServerIdentifier().Equal(net.IP{169, 254, 1, 1}) {
					t.Errorf("%v: address %v of server %v", q.kind, m.YourIPAddr, m.ServerIdentifier())
				}
			}
			// A guest that asks for configuration alone has a router already.
			inform := client4{kind: dhcpv4.MessageTypeInform, ciaddr: "10.244.1.7", options: options}
			got, _ := ask(withStandIn(), inform)
			if without, _ := ask(newRecord(), inform); !bytes.Equal(got.payload, without.payload) {
				t.Errorf("INFORM:\n%x, want\n%x", got.payload, without.payload)
			}
		})
	}
}
