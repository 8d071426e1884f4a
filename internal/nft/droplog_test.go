package nft

import (
	"encoding/binary"
	"reflect"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
)

// dropReport is the kernel's report of a dropped packet, without struct nlmsghdr.
func dropReport(d Drop) []byte {
	message := netlink.Netfilter(unix.NFPROTO_NETDEV).Serialize()
	add := func(kind int, value []byte) { message = append(message, nl.NewRtAttr(kind, value).Serialize()...) }
	add(logPacketHeader, append(netlink.EncodeBE16(d.EtherType), 0, 0))
	add(logPrefix, nl.ZeroTerminated(firewall.LogPrefix(d.NIC, d.Reason)))
	if d.Ethernet != nil {
		add(logHardware, d.Ethernet)
	}
	if d.Tag != [2]uint16{} {
		tag := nl.NewRtAttr(logVLAN, nil)
		tag.AddRtAttr(1, netlink.EncodeBE16(d.Tag[0]))
		tag.AddRtAttr(2, netlink.EncodeBE16(d.Tag[1]))
		message = append(message, tag.Serialize()...)
	}
	if !d.Time.IsZero() {
		at := binary.BigEndian.AppendUint64(nil, uint64(d.Time.Unix()))
		add(logTime, binary.BigEndian.AppendUint64(at, uint64(d.Time.Nanosecond()/1000)))
	}
	add(logNumber, binary.BigEndian.AppendUint32(nil, d.number))
	add(logPayload, d.Packet)
	return message
}

var testDrops = []Drop{
	{NIC: "eth0", Reason: firewall.MACSpoof, EtherType: 0x0806, Ethernet: make([]byte, 14), Tag: [2]uint16{0x8100, 0x6005}, Packet: []byte{0, 1, 8, 0}, Time: time.Unix(1700000000, 123456000), number: 7},
	{NIC: "net1", Reason: firewall.NamespaceOutput, EtherType: 0x0800, Packet: []byte{0x45}},
}

// TestDropRoundTrip: a parsed report has the values that were sent.
func TestDropRoundTrip(t *testing.T) {
	for _, want := range testDrops {
		have, err := parseDrop(dropReport(want))
		if err != nil || !reflect.DeepEqual(have, want) {
			t.Errorf("have %+v, %v\nwant %+v", have, err, want)
		}
	}
	theirs := append(netlink.Netfilter(unix.NFPROTO_IPV4).Serialize(), nl.NewRtAttr(logPrefix, nl.ZeroTerminated("theirs: ")).Serialize()...)
	if d, err := parseDrop(theirs); err != nil || d.NIC != "" {
		t.Errorf("another program's: %+v, %v", d, err)
	}
	if _, err := parseDrop([]byte{0}); err == nil {
		t.Error("a report of one octet is no error")
	}
}

// counterReport is a rule's expressions with a counter, and those around it, as the kernel reports them.
func counterReport(packets, bytes uint64, names ...string) []byte {
	var all []byte
	for _, name := range names {
		data := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_EXPR_DATA, nil)
		data.AddRtAttr(counterBytes, binary.BigEndian.AppendUint64(nil, bytes))
		data.AddRtAttr(counterPackets, binary.BigEndian.AppendUint64(nil, packets))
		element := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, nil)
		element.AddRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name))
		element.AddChild(data)
		all = append(all, element.Serialize()...)
	}
	return all
}

// TestDropCount: counters are added up, and other expressions do not count.
func TestDropCount(t *testing.T) {
	var c DropCount
	for _, expressions := range [][]byte{
		counterReport(3, 180, "counter"), counterReport(9, 9, "limit", "immediate"), counterReport(1<<40, 1<<41, "meta", "counter"),
	} {
		if err := c.add(expressions); err != nil {
			t.Fatal(err)
		}
	}
	if want := (DropCount{Packets: 1<<40 + 3, Bytes: 1<<41 + 180}); c != want {
		t.Errorf("have %+v, want %+v", c, want)
	}
	if err := c.add(counterReport(1, 1, "limit", "log")); err != nil || !c.Logged {
		t.Errorf("a log rule: %+v, %v", c, err)
	}
}
