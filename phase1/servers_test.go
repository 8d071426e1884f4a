package phase1_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestServerInTheGuestsNetwork: the namespace reaches a server by its default route whose address lies in the guest's
// own network. Setup refuses that, and with the network that the error asks for the guest reaches the server.
func TestServerInTheGuestsNetwork(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Masquerade{})
	servers := []netip.Addr{netip.MustParseAddr("10.0.2.10"), netip.MustParseAddr("fd10:0:2::a")}
	for i, b := range []infra.Masquerade{{}, {IPv4: netip.MustParsePrefix("172.30.0.0/24")}, {IPv4: netip.MustParsePrefix("172.30.0.0/24"), IPv6: netip.MustParsePrefix("fd77::/120")}} {
		c.Binding, c.DNS = b, &cache.DNS{Servers: servers}
		_, err := c.Setup(t.Context())
		if i == 2 && err != nil || i < 2 && !errors.Is(err, infra.ErrCollision) {
			t.Fatal(err)
		}
	}
	guest := recordsGuest(t, n, record(t, n), 1450)
	guest.Settle("eth0")
	for _, a := range servers {
		onLoopback(n.World, a)
		at := netip.AddrPortFrom(a, 53)
		n.World.Serve("server", "udp", at)
		nstest.Eventually(t, func() error {
			q, err := guest.Question("udp", netip.Addr{}, at, 100)
			if err != nil {
				return err
			}
			defer q.Close()
			_, err = q.Answer(patience)
			return err
		})
	}
}
