package kernel

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestRenamedLink: a chain of a link follows the link to its later name, whether the kernel binds chains to names or to
// links. A table that the kernel refuses for another reason is one failure that names the reason, and nothing of the
// table stays.
func TestRenamedLink(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	pod.IP("link add eth0 type veth peer name away")
	apply := func(rule firewall.Rule) error {
		return netns.Do(pod.File, func() error {
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			n, err := Open()
			if err != nil {
				return err
			}
			defer n.Close()
			return n.Apply(context.Background(), []netstate.Op{netstate.TableSet{Table: firewall.Table{Family: firewall.NetDev, Name: "guestwire-eth0", Chains: []firewall.Chain{
				{Name: "in", Type: "filter", Hook: firewall.Ingress, Device: "eth0-nic", Link: link.Index, Priority: firewall.Filter, Rules: []firewall.Rule{rule}},
			}}}})
		})
	}
	err := apply(firewall.Rule{Verdict: firewall.Goto{Chain: "nowhere"}})
	var step *infra.StepError
	if !errors.As(err, &step) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("a rule that goes to no chain: %v", err)
	}
	if tables := pod.Exec("nft", "list", "tables"); tables != "" {
		t.Errorf("left of a refused table:\n%s", tables)
	}
	pod.IP("link set away name eth0-nic")
	if err := apply(firewall.Rule{Verdict: firewall.Accept{}}); err != nil {
		t.Fatal(err)
	}
	if rules := pod.Exec("nft", "list", "ruleset"); !strings.Contains(rules, `"eth0"`) {
		t.Errorf("while another link has the later name:\n%s", rules)
	}
	pod.Exec("nft", "flush", "ruleset")
	pod.IP("link set eth0-nic name away")
	was := nft.BindsNames
	defer func() { nft.BindsNames = was }()
	for guess, guessed := range map[string]func() bool{"by release": was, "names": func() bool { return true }, "links": func() bool { return false }} {
		nft.BindsNames = guessed
		if err := apply(firewall.Rule{Verdict: firewall.Accept{}}); err != nil {
			t.Fatal(err)
		}
		pod.IP("link set eth0 name eth0-nic")
		rules := pod.Exec("nft", "list", "ruleset")
		// A wrong guess that the kernel does not refuse must be visible, so that a comparison can repair it.
		if bound := strings.Contains(rules, `"eth0-nic"`); bound != (guess != "links" || !was()) {
			t.Errorf("%s: after the link got its later name:\n%s", guess, rules)
		}
		pod.Exec("nft", "flush", "ruleset")
		pod.IP("link set eth0-nic name eth0")
	}
}
