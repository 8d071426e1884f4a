package frame_test

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/ndp"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

var (
	mac     = cache.MAC{2, 0, 0, 0, 0, 7}
	other   = cache.MAC{2, 0, 0, 0, 0, 9}
	source  = netip.MustParseAddr("fd00:1::7")
	target  = netip.MustParseAddr("fd00:1::1:2:3")
	source4 = netip.MustParseAddr("10.0.0.7")
	target4 = netip.MustParseAddr("10.0.0.1")
)

func marshal(t *testing.T, m ndp.Message) []byte {
	t.Helper()
	b, err := ndp.MarshalMessage(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func option(d ndp.Direction) []ndp.Option {
	return []ndp.Option{&ndp.LinkLayerAddress{Direction: d, Addr: net.HardwareAddr(mac[:])}}
}

// TestNeighbourDiscovery: the messages are those that another implementation makes, and a third one finds their
// checksum right.
func TestNeighbourDiscovery(t *testing.T) {
	for flags, want := range map[byte]*ndp.NeighborAdvertisement{
		0:                                {},
		frame.Override:                   {Override: true},
		frame.Override | frame.Router:    {Override: true, Router: true},
		frame.Override | frame.Solicited: {Override: true, Solicited: true},
		frame.Router | frame.Solicited:   {Router: true, Solicited: true},
	} {
		want.TargetAddress, want.Options = target, option(ndp.Target)
		if have := frame.Advertisement(flags, target, mac); !bytes.Equal(have, marshal(t, want)) {
			t.Errorf("flags %#x: %x", flags, have)
		}
	}

	b := frame.AppendSolicitation([]byte("before"), mac, source, target)
	if !bytes.HasPrefix(b, []byte("before")) {
		t.Errorf("%x", b)
	}
	f, ok := frame.ParseEthernet(b[len("before"):])
	if !ok || f.Src != mac || f.Dst != (cache.MAC{0x33, 0x33, 0xff, 2, 0, 3}) || f.Type != frame.TypeIPv6 {
		t.Errorf("%+v, %v", f, ok)
	}
	p, ok := frame.ParseIPv6(f.Body)
	group := netip.MustParseAddr("ff02::1:ff02:3")
	if !ok || p.Src != source || p.Dst != group || p.Next != frame.ICMPv6 || p.Hops != 255 {
		t.Errorf("%+v, %v", p, ok)
	}
	sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: header.ICMPv6(p.Body), Src: tcpip.AddrFromSlice(source.AsSlice()), Dst: tcpip.AddrFromSlice(group.AsSlice()),
	})
	if have := header.ICMPv6(p.Body).Checksum(); have != sum || have == 0 {
		t.Errorf("checksum %#x, want %#x", have, sum)
	}
	clear(p.Body[2:4])
	if want := marshal(t, &ndp.NeighborSolicitation{TargetAddress: target, Options: option(ndp.Source)}); !bytes.Equal(p.Body, want) {
		t.Errorf("have %x\nwant %x", p.Body, want)
	}
}

// TestARP: a packet is read as it was written, and another implementation reads it alike.
func TestARP(t *testing.T) {
	want := frame.ARP{Operation: frame.ARPReply, SenderMAC: mac, Sender: source4, TargetMAC: other, Target: target4}
	b := want.Append(nil)
	if have, ok := frame.ParseARP(append(slices.Clone(b), 0, 0)); !ok || have != want {
		t.Errorf("%+v, %v", have, ok)
	}
	a := header.ARP(b)
	if !a.IsValid() || a.Op() != header.ARPReply || !bytes.Equal(a.HardwareAddressSender(), mac[:]) || !bytes.Equal(a.HardwareAddressTarget(), other[:]) ||
		!bytes.Equal(a.ProtocolAddressSender(), source4.AsSlice()) || !bytes.Equal(a.ProtocolAddressTarget(), target4.AsSlice()) {
		t.Errorf("%x", b)
	}
	for at := range 6 {
		bad := slices.Clone(b)
		bad[at] ^= 1
		if have, ok := frame.ParseARP(bad); ok {
			t.Errorf("octet %d: %+v", at, have)
		}
	}
	if have, ok := frame.ParseARP(b[:len(b)-1]); ok {
		t.Errorf("cut short: %+v", have)
	}
}

// TestParse: what is cut short, or longer than it says, is refused. Padding is no part of a packet.
func TestParse(t *testing.T) {
	b := frame.AppendICMPv6(nil, other, mac, target, source, []byte{1, 2, 0, 0, 5})
	if p, ok := frame.ParseIPv6(append(slices.Clone(b[14:]), 0, 0)); !ok || len(p.Body) != 5 {
		t.Errorf("%+v, %v", p, ok)
	}
	for _, bad := range [][]byte{nil, b[14:53], b[14 : len(b)-1], append([]byte{0x40}, b[15:]...)} {
		if p, ok := frame.ParseIPv6(bad); ok {
			t.Errorf("%x: %+v", bad, p)
		}
	}
	if f, ok := frame.ParseEthernet(b[:13]); ok {
		t.Errorf("%+v", f)
	}
}

func TestOptions(t *testing.T) {
	whole := []byte{1, 1, 2, 3, 4, 5, 6, 7, 14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	var have []int
	for o := range frame.Options(whole) {
		have = append(have, int(o[0]), len(o))
	}
	if !frame.ValidOptions(whole) || !slices.Equal(have, []int{1, 8, 14, 16}) {
		t.Errorf("%v", have)
	}
	for o := range frame.Options(whole) {
		if o[0] != 1 {
			t.Error("the loop goes on after its end")
		}
		break
	}
	for name, bad := range map[string][]byte{"half an option": whole[:20], "a type alone": whole[:9], "no length": append(slices.Clone(whole), make([]byte, 8)...)} {
		if frame.ValidOptions(bad) {
			t.Errorf("%s is valid", name)
		}
	}
	if !frame.ValidOptions(nil) {
		t.Error("no options are not valid")
	}
}

// TestFold: the carry of a sum of 32 bits is added, and the carry of that.
func TestFold(t *testing.T) {
	for acc, want := range map[uint32]uint16{0: 0, 0xffff: 0xffff, 0x10000: 1, 0x1ffff: 1, 0xffffffff: 0xffff, 0xfffeffff: 0xfffe, 0xffff0001: 1} {
		if have := frame.Fold(acc); have != want {
			t.Errorf("%#x: %#x, want %#x", acc, have, want)
		}
	}
	if have := frame.Sum(1, []byte{1, 2, 3}); have != 1+0x102+0x300 {
		t.Errorf("%#x", have)
	}
}
