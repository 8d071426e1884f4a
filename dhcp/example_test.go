package dhcp_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
)

// A responder for a record answers the guest's DHCPDISCOVER. Serve does the same with the frames of a tap.
func Example() {
	guest := cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}
	gateway := netip.MustParseAddr("10.244.1.1")
	responder, err := dhcp.New(cache.Record{
		Version:      cache.Version,
		Name:         "eth0",
		Binding:      cache.BindingBridge,
		Tap:          "eth0-tap",
		Queues:       1,
		ResponderTap: "eth0-dhcp",
		ResponderMAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0d},
		MAC:          guest,
		MTU:          1450,
		IPv4: &cache.IPv4{
			Address: netip.MustParsePrefix("10.244.1.7/24"),
			Server:  gateway,
			Routes:  []cache.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway}},
		},
	}, cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10")}})
	if err != nil {
		log.Fatal(err)
	}

	frame := responder.Reply(nil, discover(guest))
	const headers = 14 + 20 + 8 // Ethernet, IPv4, UDP
	offer, err := dhcpv4.FromBytes(frame[headers:])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(offer.MessageType(), offer.YourIPAddr, offer.Router(), offer.DNS())
	// Output:
	// OFFER 10.244.1.7 [10.244.1.1] [10.96.0.10]
}

// discover returns the frame of a guest's DHCPDISCOVER. It has no UDP checksum, which IPv4 allows.
func discover(guest cache.MAC) []byte {
	message, err := dhcpv4.NewDiscovery(guest[:])
	if err != nil {
		log.Fatal(err)
	}
	payload := message.ToBytes()
	size := func(n int) []byte { return []byte{byte(n >> 8), byte(n)} }
	var frame []byte
	for _, part := range [][]byte{
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, guest[:], {0x08, 0x00},
		{0x45, 0}, size(20 + 8 + len(payload)), {0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255},
		{0, 68, 0, 67}, size(8 + len(payload)), {0, 0}, payload,
	} {
		frame = append(frame, part...)
	}
	ip, sum := frame[14:34], 0
	for i := 0; i < len(ip); i += 2 {
		sum += int(ip[i])<<8 | int(ip[i+1])
	}
	copy(ip[10:], size(^(sum>>16 + sum&0xffff)))
	return frame
}
