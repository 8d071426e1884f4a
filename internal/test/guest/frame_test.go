package guest

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
)

// advertisementFrame returns a frame with a router advertisement.
func advertisementFrame(t testing.TB) []byte {
	from, to := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1")
	message, err := ndp.MarshalMessageChecksum(&ndp.RouterAdvertisement{
		RouterLifetime: time.Hour,
		Options:        []ndp.Option{ndp.NewMTU(1400)},
	}, from, to)
	if err != nil {
		t.Fatal(err)
	}
	ip := []byte{0x60, 0, 0, 0, 0, 0, 58, 255}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(message)))
	return slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 1}, []byte{0x86, 0xdd},
		ip, from.AsSlice(), to.AsSlice(), message)
}

func TestParseAdvertisement(t *testing.T) {
	good := advertisementFrame(t)
	if ra := parseAdvertisement(good); ra == nil || ra.Source.String() != "fe80::1" || ra.RouterLifetime != time.Hour || len(ra.Options) != 1 {
		t.Fatalf("advertisement %+v", ra)
	}
	if padded := append(slices.Clone(good), 0, 0); parseAdvertisement(padded) == nil {
		t.Error("a frame with padding is no advertisement")
	}
	for name, at := range map[string]int{
		"ethertype": 12, "next header": 14 + 6, "hop limit": 14 + 7, "source": 14 + 8, "type": 14 + 40,
		"code": 14 + 41, "checksum": 14 + 42, "payload": len(good) - 1,
	} {
		bad := slices.Clone(good)
		bad[at] ^= 1
		if parseAdvertisement(bad) != nil {
			t.Errorf("%s changed: still an advertisement", name)
		}
	}
	for n := 14; n < len(good); n++ {
		if parseAdvertisement(good[:n]) != nil {
			t.Errorf("cut to %d of %d octets: still an advertisement", n, len(good))
		}
	}
}

// frames is a port that stores the written frames.
type frames struct{ written [][]byte }

func (f *frames) Read([]byte) (int, error) { select {} }
func (f *frames) Close() error             { return nil }
func (f *frames) Write(b []byte) (int, error) {
	f.written = append(f.written, slices.Clone(b))
	return len(b), nil
}

// replyFrame returns a frame of a broadcast wire, with the ports changed to those of an answer.
func replyFrame(t testing.TB, payload string) []byte {
	var port frames
	w := broadcast{guest: &Guest{link: &link{port: &port, mac: cache.MAC{2, 0, 0, 0, 0, 9}}}}
	if err := w.send([]byte(payload)); err != nil {
		t.Fatal(err)
	}
	frame := port.written[0]
	binary.BigEndian.PutUint16(frame[34:], bootServer)
	binary.BigEndian.PutUint16(frame[36:], bootClient) // the ports are exchanged, so the checksum stays right
	return frame
}

func TestBootReply(t *testing.T) {
	good := replyFrame(t, "offer")
	if got := bootReply(good); string(got) != "offer" {
		t.Fatalf("payload %q", got)
	}
	if got := bootReply(append(slices.Clone(good), 0, 0)); string(got) != "offer" {
		t.Errorf("payload with padding after it %q", got)
	}
	unsummed := slices.Clone(good)
	unsummed[40], unsummed[41] = 0, 0
	if got := bootReply(unsummed); string(got) != "offer" {
		t.Errorf("payload without a checksum %q", got)
	}
	for name, at := range map[string]int{
		"ethertype": 12, "header length": 14, "IP checksum": 14 + 10, "fragment": 14 + 7, "destination port": 37,
		"UDP length": 39, "UDP checksum": 41, "payload": len(good) - 1,
	} {
		bad := slices.Clone(good)
		bad[at] ^= 1
		if got := bootReply(bad); got != nil {
			t.Errorf("%s changed: still a payload, %q", name, got)
		}
	}
	for n := 14; n < len(good); n++ {
		if got := bootReply(good[:n]); got != nil {
			t.Errorf("cut to %d of %d octets: still a payload, %q", n, len(good), got)
		}
	}
}

// FuzzFrame: no frame of at least an Ethernet header makes a parser panic.
func FuzzFrame(f *testing.F) {
	f.Add(advertisementFrame(f))
	f.Add(replyFrame(f, "offer"))
	f.Add(make([]byte, 14))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 {
			return
		}
		if ra := parseAdvertisement(frame); ra != nil && !ra.Source.IsLinkLocalUnicast() {
			t.Errorf("advertisement of %v", ra.Source)
		}
		if reply := bootReply(frame); reply != nil && len(reply) > len(frame)-14-20-8 {
			t.Error("payload longer than the frame has room for")
		}
	})
}

func TestUsableRoutes(t *testing.T) {
	parse := func(to, via string) Route {
		r := Route{Destination: netip.MustParsePrefix(to)}
		if via != "" {
			r.Gateway = netip.MustParseAddr(via)
		}
		return r
	}
	gateway, byGateway := parse("169.254.1.1/32", ""), parse("0.0.0.0/0", "169.254.1.1")
	for name, c := range map[string]struct {
		address string
		told    []Route
		want    []Route
		refused bool
	}{
		"gateway in the subnet":     {"10.9.0.50/24", []Route{parse("0.0.0.0/0", "10.9.0.1")}, []Route{parse("10.9.0.0/24", ""), parse("0.0.0.0/0", "10.9.0.1")}, false},
		"on-link gateway first":     {"10.9.0.50/32", []Route{gateway, byGateway}, []Route{gateway, byGateway}, false},
		"on-link gateway too late":  {"10.9.0.50/32", []Route{byGateway, gateway}, []Route{gateway}, true},
		"no on-link gateway":        {"10.9.0.50/32", []Route{byGateway}, nil, true},
		"gateway behind a gateway":  {"10.9.0.50/24", []Route{parse("172.16.0.0/16", "10.9.0.1"), parse("0.0.0.0/0", "172.16.0.1")}, []Route{parse("10.9.0.0/24", ""), parse("172.16.0.0/16", "10.9.0.1")}, true},
		"everything is on the link": {"10.9.0.50/32", []Route{parse("0.0.0.0/0", "")}, []Route{parse("0.0.0.0/0", "")}, false},
		"an address and no routes":  {"10.9.0.50/32", nil, nil, false},
		"a subnet and nothing else": {"10.9.0.50/24", nil, []Route{parse("10.9.0.0/24", "")}, false},
	} {
		l := &Lease4{Address: netip.MustParsePrefix(c.address), Routes: c.told}
		got, err := l.usableRoutes()
		if !slices.Equal(got, c.want) || (err != nil) != c.refused {
			t.Errorf("%s: %v, error %v; want %v, error %v", name, got, err, c.want, c.refused)
		}
	}
}
