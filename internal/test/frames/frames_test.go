package frames_test

import (
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/test/frames"
)

var link = frames.Link{
	MAC: cache.MAC{2, 0, 0, 0, 0, 7}, IPv4: netip.MustParseAddr("10.244.1.7"), IPv6: netip.MustParseAddr("fd00:244:1::7"),
	Gateway: cache.MAC{2, 0, 0, 0, 0, 1}, Gateway4: netip.MustParseAddr("10.244.1.1"), Gateway6: netip.MustParseAddr("fd00:244:1::1"),
	Far4: netip.MustParseAddr("198.51.100.9"), Far6: netip.MustParseAddr("2001:db8:9::9"),
}

// TestCorpus: every kind has a unique name, a reason, and unique frames that a tap accepts.
func TestCorpus(t *testing.T) {
	for _, served := range []bool{true, false} {
		l := link
		l.Served = served
		names, seen := map[string]bool{}, map[string]string{}
		hostile, legitimate := frames.Hostile(l), frames.Legitimate(l)
		for i, k := range append(hostile, legitimate...) {
			if k.Name == "" || k.Why == "" || len(k.Frames) == 0 {
				t.Errorf("kind %d, %q, has no name, reason or frame", i, k.Name)
			}
			if names[k.Name] {
				t.Errorf("two kinds have the name %q", k.Name)
			}
			names[k.Name] = true
			whole := ""
			for _, f := range k.Frames {
				if len(f) < 14 {
					t.Errorf("%s: a frame of %d octets; a tap accepts no frame below 14", k.Name, len(f))
				}
				whole += string(f)
			}
			if seen[whole] != "" {
				t.Errorf("%s and %s have the same frames", k.Name, seen[whole])
			}
			seen[whole] = k.Name
		}
		reasons := map[firewall.Reason]bool{}
		for _, r := range firewall.Reasons {
			reasons[r.Reason] = true
		}
		for _, k := range hostile {
			if k.Reason != "" && !reasons[k.Reason] {
				t.Errorf("%s: no reason %q", k.Name, k.Reason)
			}
		}
		for _, k := range legitimate {
			if k.Reason != "" {
				t.Errorf("%s is legitimate, and dropped: %s", k.Name, k.Reason)
			}
		}
		if len(hostile) < 120 || len(legitimate) < 30 {
			t.Errorf("%d hostile kinds and %d legitimate ones, want 120 and 30", len(hostile), len(legitimate))
		}
		t.Logf("served %v: %d hostile, %d legitimate", served, len(hostile), len(legitimate))
	}
}
