package kernel

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

var (
	guest6     = netip.MustParseAddr("fd00:1::7")
	neighbour6 = netip.MustParseAddr("fd00:1::1:2:3")
	guestMAC   = cache.MAC{2, 0, 0, 0, 0, 7}
)

// TestSolicitation: another implementation reads what encode writes. That a kernel answers is what
// TestGateway of package phase1 shows.
func TestSolicitation(t *testing.T) {
	b := Solicitation{MAC: guestMAC, Source: guest6, Target: neighbour6}.encode()
	if to := (cache.MAC{0x33, 0x33, 0xff, 2, 0, 3}); cache.MAC(b[:6]) != to || cache.MAC(b[6:12]) != guestMAC {
		t.Errorf("from %v to %v, want from %v to %v", cache.MAC(b[6:12]), cache.MAC(b[:6]), guestMAC, to)
	}
	if from, to := netip.AddrFrom16([16]byte(b[22:38])), netip.AddrFrom16([16]byte(b[38:54])); from != guest6 || to != netip.MustParseAddr("ff02::1:ff02:3") {
		t.Errorf("from %v to %v", from, to)
	}
	if frame.Fold(frame.Sum(frame.Pseudo6(guest6, frame.SolicitedNode(neighbour6), frame.ICMPv6, len(b)-54), b[54:])) != 0xffff {
		t.Error("wrong checksum")
	}
	m, err := ndp.ParseMessage(b[54:])
	if err != nil {
		t.Fatal(err)
	}
	s, ok := m.(*ndp.NeighborSolicitation)
	if !ok || s.TargetAddress != neighbour6 || len(s.Options) != 1 {
		t.Fatalf("%+v", m)
	}
	if o, ok := s.Options[0].(*ndp.LinkLayerAddress); !ok || o.Direction != ndp.Source || cache.MAC(o.Addr) != guestMAC {
		t.Errorf("option %+v", s.Options[0])
	}
}

// advertisementReport is the frame of a neighbour's advertisement, with the options given.
func advertisementReport(target netip.Addr, options ...byte) []byte {
	icmp := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, target.AsSlice()...)
	return frame.AppendICMPv6(nil, guestMAC, mac6, guest6, target, append(icmp, options...))
}

// mac6Reported is the option with the MAC.
var mac6Reported = append([]byte{2, 1}, mac6[:]...)

// TestAdvertisement: a valid answer is read, and nothing else is taken for one (RFC 4861 section 7.1.2).
func TestAdvertisement(t *testing.T) {
	want := frame.Answer{Receiver: guestMAC, Sender: mac6, Target: neighbour6, MAC: mac6}
	unknown := []byte{14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	valid := advertisementReport(neighbour6, mac6Reported...)
	for name, b := range map[string][]byte{
		"one option":            valid,
		"padding":               append(slices.Clone(valid), 0, 0, 0),
		"an unknown option too": advertisementReport(neighbour6, slices.Concat(unknown, mac6Reported)...),
	} {
		if have, ok := frame.ParseAnswer(b); !ok || have != want {
			t.Errorf("%s: have %+v, %v\nwant %+v", name, have, ok, want)
		}
	}
	edited := func(at int, to byte) []byte {
		b := slices.Clone(valid)
		b[at] = to
		return b
	}
	for name, b := range map[string][]byte{
		"cut short":              valid[:len(valid)-1],
		"no options":             advertisementReport(neighbour6),
		"another option alone":   advertisementReport(neighbour6, unknown...),
		"option without length":  advertisementReport(neighbour6, append([]byte{14, 0, 0, 0, 0, 0, 0, 0}, mac6Reported...)...),
		"option cut short":       advertisementReport(neighbour6, append(slices.Clone(mac6Reported), 14)...),
		"option longer than all": advertisementReport(neighbour6, append(slices.Clone(mac6Reported), 14, 9, 0, 0, 0, 0, 0, 0)...),
		"multicast MAC":          advertisementReport(neighbour6, 2, 1, 1, 0, 0, 0, 0, 1),
		"no MAC":                 advertisementReport(neighbour6, 2, 1, 0, 0, 0, 0, 0, 0),
		"source's option":        advertisementReport(neighbour6, append([]byte{1, 1}, mac6[:]...)...),
		"multicast target":       advertisementReport(netip.MustParseAddr("ff02::1"), mac6Reported...),
		"IPv4":                   edited(13, 0),
		"version 4":              edited(14, 0x40),
		"UDP":                    edited(20, 17),
		"hop limit 64":           edited(21, 64),
		"solicitation":           edited(54, 135),
		"code 1":                 edited(55, 1),
		"wrong checksum":         edited(56, valid[56]+1),
		"length of 24":           edited(19, 24),
	} {
		if have, ok := frame.ParseAnswer(b); ok {
			t.Errorf("%s: %+v", name, have)
		}
	}
}

// TestARPRequest: the frame of a question for an IPv4 neighbour, and the answers to it.
func TestARPRequest(t *testing.T) {
	guest, gateway := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("169.254.1.1")
	mac := cache.MAC{2, 0, 0, 0, 0, 9}
	want := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, guestMAC[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1},
		guestMAC[:], guest.AsSlice(), make([]byte, 6), gateway.AsSlice())
	if have := (Solicitation{MAC: guestMAC, Source: guest, Target: gateway}).encode(); !bytes.Equal(have, want) {
		t.Errorf("have %x\nwant %x", have, want)
	}
	answer := slices.Concat(guestMAC[:], mac[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, mac[:], gateway.AsSlice(), guestMAC[:], guest.AsSlice())
	if a, ok := frame.ParseAnswer(append(answer, make([]byte, 18)...)); !ok || a != (frame.Answer{Receiver: guestMAC, Sender: mac, Target: gateway, MAC: mac}) {
		t.Errorf("%+v, %v", a, ok)
	}
	for name, at := range map[string]int{"another hardware": 15, "a group's MAC": 22, "another protocol": 16} {
		bad := bytes.Clone(answer)
		bad[at] ^= 1
		if a, ok := frame.ParseAnswer(bad); ok {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if a, ok := frame.ParseAnswer(answer[:len(answer)-1]); ok {
		t.Errorf("cut short: %+v", a)
	}
}
