package main_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// ptp is a plugin that makes a veth, whose other end is the pod's gateway.
func (n *node) ptp() string {
	return fmt.Sprintf(`{"type": "ptp", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.23.0.0/24"}], [{"subnet": "fd00:23::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`, n.leases)
}

// TestTapResult: the result names the guest's tap, and the guest with its MAC and one address, as callers of
// tc-redirect-tap want it; CHECK passes where the NIC has what the result says. Under the name tc-redirect-tap no spec
// is needed, and a guest that configures itself by the result reaches the node.
func TestTapResult(t *testing.T) {
	t.Parallel()
	masquerade := `"tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"masquerade": {}}}`
	for _, row := range []struct {
		name, version string
		main          func(*node) string
		plugin, more  string
		args          [][2]string
		tap, address  string // address: the pod's, where it is empty
		check         string // the error of CHECK; empty: none
	}{
		{name: "tc-redirect-tap after bridge", version: "1.0.0", main: (*node).flannel, plugin: "tc-redirect-tap", tap: "eth0-tap"},
		{name: "tc-redirect-tap after ptp", version: "0.4.0", main: (*node).ptp, plugin: "tc-redirect-tap", tap: "tap7",
			args: [][2]string{{"TC_REDIRECT_TAP_NAME", "tap7"}, {"TC_REDIRECT_TAP_UID", "107"}, {"TC_REDIRECT_TAP_GID", "4321"}}},
		{name: "guestwire after ptp", version: "1.0.0", main: (*node).ptp, plugin: "guestwire", tap: "eth0-tap",
			more: `"tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"redirect": {}}}`},
		{name: "bridge", version: "0.3.1", main: (*node).flannel, plugin: "guestwire", tap: "eth0-tap",
			more: `"tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"bridge": {}}}`},
		{name: "masquerade", version: "1.0.0", main: (*node).flannel, plugin: "guestwire", more: masquerade, tap: "eth0-tap", address: "10.0.2.2/24",
			check: "Failed to match addr 10.0.2.2/24"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			s := n.sandbox("")
			if row.plugin != "guestwire" {
				if err := os.Symlink(filepath.Join(n.plugins, "guestwire"), filepath.Join(n.scripts, row.plugin)); err != nil {
					t.Fatal(err)
				}
			}
			entry := strings.Replace(n.guestwire(row.more), `"guestwire"`, fmt.Sprintf("%q", row.plugin), 1)
			list := n.list(row.version, "podnet", row.main(n), entry)
			rt := s.runtime("eth0")
			rt.Args, rt.CapabilityArgs = append(row.args, [2]string{"IgnoreUnknown", "1"}), nil
			empty := s.ns.Settled()
			result, err := types100.NewResultFromResult(s.add(list, rt))
			if err != nil {
				t.Fatal(err)
			}
			last := len(result.Interfaces) - 1
			tap, vm := result.Interfaces[last-1], result.Interfaces[last]
			if tap.Name != row.tap || tap.Sandbox != s.ns.Path() || tap.Mac != "" || vm.Name != row.tap || vm.Sandbox != s.id {
				t.Errorf("the result has the interfaces %+v and %+v", tap, vm)
			}
			if mac := strings.TrimSpace(s.ns.Exec("cat", "/sys/class/net/eth0/address")); row.address == "" && vm.Mac != mac {
				t.Errorf("the guest's MAC is %s, the NIC's %s", vm.Mac, mac)
			}
			if link := s.ns.Exec("ip", "-d", "link", "show", row.tap); row.args != nil && !strings.Contains(link, "user 107 group 4321") {
				t.Errorf("the tap is\n%s", link)
			}
			var guests []*types100.IPConfig
			for _, ip := range result.IPs {
				if *ip.Interface == last {
					guests = append(guests, ip)
				}
			}
			want := row.address
			if want == "" {
				want = result.IPs[0].Address.String()
			}
			if len(guests) != 1 || guests[0].Address.String() != want || guests[0].Gateway == nil {
				t.Fatalf("the guest has the addresses %+v of %+v, want %s", guests, result.IPs, want)
			}
			if record := s.record("eth0"); vm.Mac != record.MAC.String() {
				t.Errorf("the guest's MAC is %s, and %v in the record", vm.Mac, record.MAC)
			}
			if links := s.ns.Exec("ip", "-o", "link"); strings.Contains(links, "eth0-dhcp") == (row.plugin != "guestwire") {
				t.Errorf("a responder's tap belongs to guestwire alone:\n%s", links)
			}
			if rules := s.ns.Exec("nft", "list", "ruleset"); strings.Contains(rules, "mac-spoof") == (row.plugin != "guestwire") {
				t.Errorf("a filter belongs to guestwire alone:\n%s", rules)
			}
			if row.plugin != "guestwire" {
				n.ns.Listen("node", ":8000")
				g := nstest.Boot(t, s.ns.File, s.record("eth0"), "guest")
				if err := g.AddAddress(netip.MustParsePrefix(want)); err != nil {
					t.Fatal(err)
				}
				c, err := g.DialTCP(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(guests[0].Gateway.String()), 8000))
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
			err = n.cni.CheckNetworkList(t.Context(), list, rt)
			if row.version >= "0.4.0" && (row.check == "" && err != nil || row.check != "" && (err == nil || !strings.Contains(err.Error(), row.check))) {
				t.Errorf("CHECK: %v, want %q", err, row.check)
			}
			s.del(list, rt)
			n.clean()
			if err := nstest.Difference(empty, s.ns.Settled()); err != nil {
				t.Error(err)
			}
			for _, refused := range []struct {
				args [2]string
				more string
				want string
			}{
				{[2]string{"K8S_POD_NAME", "vm"}, row.more, "tapResult: not on Kubernetes"},
				{[2]string{"TC_REDIRECT_TAP_UID", "nobody"}, "", "TC_REDIRECT_TAP_UID: \"nobody\", want a number"},
				{[2]string{"IgnoreUnknown", "1"}, `"guard": {}`, `is a member of "spec"`},
				{[2]string{"IgnoreUnknown", "1"}, `"tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"passt": {}}}`, "the binding passt has no tap"},
			} {
				if row.plugin == "guestwire" && refused.more == "" || row.plugin != "guestwire" && strings.Contains(refused.more, "spec") {
					continue
				}
				rt.Args = [][2]string{refused.args, {"IgnoreUnknown", "1"}}
				entry := strings.Replace(n.guestwire(refused.more), `"guestwire"`, fmt.Sprintf("%q", row.plugin), 1)
				list := n.list(row.version, "podnet", row.main(n), entry)
				if _, err := n.cni.AddNetworkList(t.Context(), list, rt); err == nil || !strings.Contains(err.Error(), refused.want) {
					t.Errorf("ADD with %v: %v, want %s", refused, err, refused.want)
				}
				s.del(list, rt)
			}
			n.clean()
		})
	}
}
