package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	library "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// connectionReport is the kernel's message of a UDP exchange that was translated to another destination.
func connectionReport(source, destination, translated netip.Addr) []byte {
	tuple := func(kind int, from, to netip.Addr) *nl.RtAttr {
		ip := []int{nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST}
		if from.Is4() {
			ip = []int{nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST}
		}
		t := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
		addresses := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
		addresses.AddRtAttr(ip[0], from.AsSlice())
		addresses.AddRtAttr(ip[1], to.AsSlice())
		protocol := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
		protocol.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})
		protocol.AddRtAttr(nl.CTA_PROTO_SRC_PORT, netlink.EncodeBE16(40000))
		protocol.AddRtAttr(nl.CTA_PROTO_DST_PORT, netlink.EncodeBE16(53))
		return t
	}
	return slices.Concat(netlink.Netfilter(netlink.Family(source)).Serialize(),
		tuple(nl.CTA_TUPLE_ORIG, source, destination).Serialize(), tuple(nl.CTA_TUPLE_REPLY, translated, source).Serialize(),
		nl.NewRtAttr(nl.CTA_ID, []byte{1, 2, 3, 4}).Serialize(), nl.NewRtAttr(nl.CTA_ZONE, netlink.EncodeBE16(7)).Serialize())
}

// TestConnectionIs: which connections an operation names.
func TestConnectionIs(t *testing.T) {
	client, own, guest := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.2.2")
	one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 32) }
	udp := func(first, last uint16) []infra.Ports {
		return []infra.Ports{{Protocol: "udp", First: first, Last: last}}
	}
	for _, c := range []struct {
		translated netip.Addr
		op         netstate.ConnectionsDel
		want       bool
	}{
		{own, netstate.ConnectionsDel{OrigDst: one(own), ReplySrc: one(own), Ports: udp(53, 0)}, true},
		{own, netstate.ConnectionsDel{OrigDst: one(own), Ports: append(udp(1, 7), udp(50, 60)...)}, true},
		{own, netstate.ConnectionsDel{OrigDst: one(own), Ports: udp(54, 60)}, false},
		{own, netstate.ConnectionsDel{OrigDst: one(own), Ports: []infra.Ports{{First: 53}}}, false}, // TCP
		{own, netstate.ConnectionsDel{OrigDst: one(client), Ports: udp(53, 0)}, false},
		{guest, netstate.ConnectionsDel{OrigDst: one(own), ReplySrc: one(own), Ports: udp(53, 0)}, false},
		{guest, netstate.ConnectionsDel{ReplySrc: netip.MustParsePrefix("10.0.2.0/24")}, true},
		{guest, netstate.ConnectionsDel{OrigSrc: one(guest)}, false},
		{guest, netstate.ConnectionsDel{OrigSrc: one(client)}, true},
		{guest, netstate.ConnectionsDel{ReplyDst: one(client), ReplySrc: one(guest)}, true},
		{guest, netstate.ConnectionsDel{ReplyDst: one(own), ReplySrc: one(guest)}, false},
		{own, netstate.ConnectionsDel{ReplySrc: netip.MustParsePrefix("fd00::/8")}, false},
		{own, netstate.ConnectionsDel{OrigDst: one(own), Portless: true}, false},
	} {
		have, err := parseConnection(connectionReport(client, own, c.translated))
		if err != nil || have.matches(c.op) != c.want || have.reply.sourcePort != 40000 || have.original.port != 53 {
			t.Errorf("%v, translated to %v: %t, %v", c.op, c.translated, !c.want, err)
		}
	}
}

// TestConnectionIndex: the index finds the first operation that names a connection, and looks at no more operations if
// a NIC has more addresses.
func TestConnectionIndex(t *testing.T) {
	address := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }
	one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 32) }
	hop := one(netip.MustParseAddr("169.254.75.1"))
	var ops []netstate.Op
	for n := range 2000 { // as of a routed binding
		own := one(address(n))
		ops = append(ops, netstate.ConnectionsDel{OrigSrc: hop, ReplyDst: own}, netstate.ConnectionsDel{OrigSrc: own}, netstate.ConnectionsDel{ReplySrc: own, ReplyDst: hop})
	}
	ops = append(ops, netstate.ConnectionsDel{OrigSrc: netip.MustParsePrefix("10.9.0.0/16")}, netstate.ConnectionsDel{ReplySrc: netip.MustParsePrefix("10.0.0.0/8"), OrigDst: one(address(7))})
	index := indexConnections(ops)
	for key, list := range index.by {
		if len(list) > 4 {
			t.Fatalf("%d operations are looked at for %v", len(list), key)
		}
	}
	for _, c := range [][3]netip.Addr{
		{address(3), address(4), address(4)}, {address(5000), address(7), address(8)}, {address(5000), address(5001), address(5001)},
		{hop.Addr(), address(5000), address(12)}, {netip.MustParseAddr("10.9.1.1"), address(9), address(9)},
	} {
		connection, err := parseConnection(connectionReport(c[0], c[1], c[2]))
		want := slices.IndexFunc(ops, func(o netstate.Op) bool { return connection.matches(o.(netstate.ConnectionsDel)) })
		if have := index.first(connection); err != nil || have != want {
			t.Errorf("%v: operation %d, want %d; %v", c, have, want, err)
		}
	}
}

// TestForgetConnections: the kernel forgets the connections that are named, of both families and however many, and no
// others.
func TestForgetConnections(t *testing.T) {
	nstest.Need(t, "nft")
	pod := nstest.New(t, "pod")
	for family, server := range map[string]string{"ip": "127.0.0.3", "ip6": "::1"} {
		pod.Exec("nft", fmt.Sprintf("table %s other { chain c { type nat hook output priority -100; %[1]s daddr %s udp dport 99 dnat to :98; }; }", family, server))
	}
	pod.IP("addr add fd00::7/128 dev lo nodad")
	const many = 2*connectionsAtOnce + 10
	send := func(to string) error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("question"))
		return err
	}
	list := func() (lines []string, err error) {
		for _, family := range []library.InetFamily{library.FAMILY_V4, library.FAMILY_V6} {
			flows, err := library.ConntrackTableList(library.ConntrackTable, family)
			for errors.Is(err, library.ErrDumpInterrupted) {
				flows, err = library.ConntrackTableList(library.ConntrackTable, family)
			}
			if err != nil {
				return nil, err
			}
			for _, f := range flows {
				if f.Forward.Protocol == unix.IPPROTO_UDP { // and not the ICMP messages of closed ports
					lines = append(lines, fmt.Sprintf("%v:%d %v", f.Forward.DstIP, f.Forward.DstPort, f.Reverse.SrcIP))
				}
			}
		}
		slices.Sort(lines)
		return lines, nil
	}
	udp := []infra.Ports{{Protocol: "udp", First: 1, Last: 65535}}
	err := netns.Do(pod.File, func() error {
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		for i := range many {
			if err := send(fmt.Sprintf("127.0.0.2:%d", 1000+i)); err != nil {
				return err
			}
		}
		for _, to := range []string{"127.0.0.1:53", "127.0.0.1:54", "[fd00::7]:53", "[::1]:53", "127.0.0.4:53"} {
			if err := send(to); err != nil {
				return err
			}
		}
		// One in some hundred may be lost on a busy machine; what matters is that they are more than are deleted at
		// once.
		if have, err := list(); err != nil || len(have) <= 2*connectionsAtOnce {
			return fmt.Errorf("the namespace tracks %d exchanges, %v, want %d", len(have), err, many+5)
		}
		ops := []netstate.Op{
			netstate.ConnectionsDel{OrigDst: netip.MustParsePrefix("127.0.0.2/32"), Ports: udp},
			netstate.ConnectionsDel{OrigDst: netip.MustParsePrefix("127.0.0.1/32"), Ports: []infra.Ports{{Protocol: "udp", First: 54}}},
			netstate.ConnectionsDel{ReplySrc: netip.MustParsePrefix("fd00::7/128")},
			netstate.ConnectionsDel{OrigSrc: netip.MustParsePrefix("192.0.2.0/24")},
		}
		for range 2 {
			if err := n.Apply(t.Context(), ops); err != nil {
				return err
			}
			lines, err := list()
			if have, want := strings.Join(lines, ", "), "127.0.0.1:53 127.0.0.1, 127.0.0.4:53 127.0.0.4, ::1:53 ::1"; err != nil || have != want {
				t.Errorf("the namespace tracks %s, %v, want %s", have, err, want)
			}
		}
		// What the kernel answers for a subsystem that it does not have.
		err = n.filter.Dump(netlink.NewRequest(0xff<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, netlink.Netfilter(unix.AF_UNSPEC)), func() {}, func([]byte) error { return nil })
		if !netlink.Answers(err, unix.EINVAL) {
			t.Errorf("a subsystem that no kernel has: %v, want EINVAL", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
