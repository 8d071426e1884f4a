package main

import (
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
)

// TestWhoGetsDNS: a guest that guestwire answers gets the DNS of the result. Others cannot be told, and are wired.
func TestWhoGetsDNS(t *testing.T) {
	for binding, want := range map[string]bool{"masquerade": true, "redirect": true, "passt": false, "slirp": false, "macvtap": false} {
		text, err := json.Marshal(map[string]any{
			"cniVersion": "1.0.0", "name": "n", "type": "guestwire",
			"spec":       map[string]any{"owner": map[string]any{"uid": 107}, "binding": map[string]any{binding: map[string]any{}}},
			"prevResult": map[string]any{"cniVersion": "1.0.0", "dns": map[string]any{"nameservers": []string{"192.0.2.1"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var c config
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		nics, err := c.wanted(&skel.CmdArgs{IfName: "eth0", StdinData: text})
		if err != nil || len(nics) != 1 || (nics[0].spec.DNS != nil) != want {
			t.Errorf("%s: %+v, %v", binding, nics, err)
		}
	}
}
