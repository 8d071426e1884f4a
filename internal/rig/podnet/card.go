package podnet

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// kindCards stands for two network cards of the machine that are connected to each other. The stock kernel's machine
// has them.
const kindCards = "card"

// cards are the MACs of the two network cards.
func cards() []string { return strings.Fields(os.Getenv("GUESTWIRE_CARDS")) }

// createCard creates a pod that gets a network card of the node from the host-device plugin. The other card is a port
// of the LAN's switch. After DEL the card has its name in the node again.
func createCard(t testing.TB) *Instance {
	node, router, stations := lan(t)
	node.IP("link del up0")
	for i, at := range []struct {
		namespace *nstest.Namespace
		name      string
	}{{node, "up0"}, {router, "node"}} {
		name := linkWith(t, nstest.Run(t, "ip", "-br", "link"), cards()[i])
		nstest.Run(t, "ip", "link", "set", name, "name", at.name, "netns", at.namespace.Name)
		t.Cleanup(func() { at.namespace.IP("link set " + at.name + " down name " + name + " netns 1") })
	}
	router.IP("link set node up master lan0")
	a := newChain(t, node, `"type": "host-device", "device": "up0"`).add(t, nstest.New(t, "pod"), "eth0")
	l := a.instance(stations...)
	l.Delete = func(t testing.TB) {
		t.Helper()
		a.delete(t)
		if name := linkWith(t, node.IP("-br link"), cards()[0]); name != "up0" {
			t.Errorf("after CNI DEL the card is called %s, want up0", name)
		}
	}
	return l
}

// linkWith returns the name of the link with the MAC in the output of "ip -br link".
func linkWith(t testing.TB, links, mac string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^(\S+) .*` + mac).FindStringSubmatch(links)
	if found == nil {
		t.Fatalf("no link with the MAC %s:\n%s", mac, links)
	}
	return found[1]
}
