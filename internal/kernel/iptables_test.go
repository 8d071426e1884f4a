package kernel

import (
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

var iptablesLines = []string{
	"-P FORWARD ACCEPT", "-N DOCKER", "-N guestwire-eth0-forward", "-N guestwire-eth0-network", "-N guestwire-eth01-forward",
	"-A FORWARD -j guestwire-eth0-forward", "-A FORWARD -j DOCKER", "-A guestwire-eth0-forward -i eth0 -j guestwire-eth0-network",
	"-A guestwire-eth0-network -j DROP", "-A guestwire-eth01-forward -j DROP",
}

func TestParseChains(t *testing.T) {
	want := []chain{
		{table: "filter", name: "guestwire-eth0-forward", rules: []string{"-i eth0 -j guestwire-eth0-network"}, from: []string{"FORWARD"}},
		{table: "filter", name: "guestwire-eth0-network", rules: []string{"-j DROP"}},
	}
	if have := parseChains(iptablesLines, "filter", "guestwire-eth0"); !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
}

// TestDeleteIPTables: chains go whatever the chains are called that jump to them.
func TestDeleteIPTables(t *testing.T) {
	for _, program := range []firewall.Family{firewall.IPTablesNFT, firewall.IPTablesLegacy} {
		nstest.Need(t, string(program))
		pod := nstest.New(t, "pod")
		for _, line := range [][]string{{"-N", "gw-eth0-source"}, {"-N", `a"b\`}, {"-A", `a"b\`, "-j", "gw-eth0-source"}, {"-A", "POSTROUTING", "-j", "gw-eth0-source"}, {"-A", "gw-eth0-source", "-j", "RETURN"}} {
			pod.Exec(append([]string{string(program), "-t", "nat"}, line...)...)
		}
		if err := inPod(pod, func(*Namespace) error { return deleteIPTables(program, "gw-eth0") }); err != nil {
			t.Errorf("%s: %v", program, err)
		}
		if left := pod.Exec(string(program), "-t", "nat", "-S"); strings.Contains(left, "gw-eth0") || !strings.Contains(left, `-N a"b\`) {
			t.Errorf("%s: %s", program, left)
		}
	}
}
