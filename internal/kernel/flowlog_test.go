package kernel

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	library "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// countedReport is the kernel's message of a ping that has ended, with what it has carried and its times.
func countedReport(destination netip.Addr) []byte {
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	pair := func(kind int, a, b uint64) []byte {
		r := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
		r.AddRtAttr(1, number(a))
		r.AddRtAttr(2, number(b))
		return r.Serialize()
	}
	ip, icmp := []int{nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST}, []int{7, 8, 9}
	if destination.Is4() {
		ip, icmp = []int{nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST}, []int{4, 5, 6}
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	addresses := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	addresses.AddRtAttr(ip[0], destination.AsSlice())
	addresses.AddRtAttr(ip[1], destination.AsSlice())
	protocol := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	protocol.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_ICMP})
	protocol.AddRtAttr(icmp[0], netlink.EncodeBE16(77))
	protocol.AddRtAttr(icmp[1], []byte{8})
	protocol.AddRtAttr(icmp[2], []byte{1})
	return slices.Concat(netlink.Netfilter(netlink.Family(destination)).Serialize(), tuple.Serialize(),
		pair(nl.CTA_COUNTERS_ORIG, 3, 252), pair(nl.CTA_COUNTERS_REPLY, 2, 168), pair(nl.CTA_TIMESTAMP, 1e18, 1e18+5e9),
		nl.NewRtAttr(nl.CTA_ID, []byte{0, 0, 1, 2}).Serialize(), nl.NewRtAttr(nl.CTA_ZONE, netlink.EncodeBE16(7)).Serialize())
}

// flowDatagram is a datagram with the message twice, as one about a connection (IPCTNL_MSG_CT_*) that is new or
// deleted.
func flowDatagram(kind uint16, body []byte) []byte {
	var m []byte
	m = binary.NativeEndian.AppendUint32(m, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, unix.NFNL_SUBSYS_CTNETLINK<<8|kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_CREATE)
	m = append(append(m, make([]byte, 8)...), body...)
	return slices.Concat(m, m)
}

// TestReport: what a report says of a connection.
func TestReport(t *testing.T) {
	to := netip.MustParseAddr("2001:db8::9")
	at := netip.AddrPortFrom(to, 0)
	want := Flow{
		Ended: true, Protocol: 1, First: Ends{at, at}, ICMP: &ICMP{Type: 8, Code: 1, ID: 77}, ID: 0x102, Zone: 7,
		FromFirst: &Carried{3, 252}, FromAnswers: &Carried{2, 168}, Began: time.Unix(1e9, 0), At: time.Unix(1e9+5, 0),
	}
	n := 0
	err := eachReport(flowDatagram(2, countedReport(to)), func(f Flow) {
		if n++; !reflect.DeepEqual(f, want) {
			t.Errorf("%+v, want %+v", f, want)
		}
	})
	if err != nil || n != 2 {
		t.Errorf("%d reports, %v", n, err)
	}
}

// TestReportOfLateEnd: a flow has ended when its time was over, which the kernel notices up to a minute later.
func TestReportOfLateEnd(t *testing.T) {
	late := nl.NewRtAttr(timestampEvent, binary.BigEndian.AppendUint64(nil, 1e18+60e9)).Serialize()
	err := eachReport(flowDatagram(2, append(countedReport(netip.MustParseAddr("192.0.2.1")), late...)), func(f Flow) {
		if want := time.Unix(1e9+5, 0); !f.At.Equal(want) {
			t.Errorf("the end is at %v, want %v", f.At, want)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestReportsOfOthers: only the kernel's reports count. Who has CAP_NET_ADMIN in the namespace can send to the groups.
func TestReportsOfOthers(t *testing.T) {
	pod := nstest.New(t, "pod")
	var log *FlowLog
	err := netns.Do(pod.File, func() (err error) {
		if log, err = OpenFlowLog(1 << 20); err != nil {
			return err
		}
		s, err := netlink.Open(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer s.Close()
		forged := flowDatagram(2, countedReport(netip.MustParseAddr("192.0.2.1")))
		for _, datagram := range [][]byte{forged, forged[:20]} {
			if err := unix.Sendto(s.Descriptor(), datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
				return err
			}
		}
		ends := func(from, to string) *library.IPTuple {
			return &library.IPTuple{SrcIP: net.ParseIP(from).To4(), DstIP: net.ParseIP(to).To4(), SrcPort: 7, DstPort: 9, Protocol: unix.IPPROTO_UDP}
		}
		return library.ConntrackCreate(library.ConntrackTable, unix.AF_INET, &library.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600,
			Forward: *ends("198.51.100.7", "198.51.100.9"), Reverse: *ends("198.51.100.9", "198.51.100.7")})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(t.Context())
	err = log.Follow(ctx, func(Flow) bool { return true }, func(f Flow) {
		cancel()
		if want := netip.MustParseAddrPort("198.51.100.7:7"); f.First.Source != want {
			t.Errorf("the first report is %+v, want one of %v", f, want)
		}
	})
	if err != nil {
		t.Error(err)
	}
}
