package kernel

import (
	"reflect"
	"testing"
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
