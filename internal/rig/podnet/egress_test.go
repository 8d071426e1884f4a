package podnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// guardedPort is the port of OpenShift's machine config server, to which no pod may connect.
const guardedPort = 22623

// TestEgressRules creates rules in the pod's namespace that refuse connections to a port, as OpenShift's networks do,
// and measures whether the rules also hold for a guest. The result must be a row in docs/reference/networks.md.
func TestEgressRules(t *testing.T) {
	nstest.Need(t, "iptables-restore", "ip6tables-restore")
	nstest.NeedTaps(t)
	heading := "| rules in the namespace | a process |"
	for _, b := range meshBindings {
		heading += " " + b.name + " |"
	}
	documented, err := os.ReadFile(overview)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(documented), "\n"+heading+"\n") {
		t.Errorf("%s lacks the heading\n%s", overview, heading)
	}
	for _, rules := range []struct {
		name   string
		chains []string
	}{
		{"at OUTPUT", []string{"OUTPUT"}},
		{"at FORWARD", []string{"FORWARD"}},
		{"at OUTPUT and FORWARD, as OpenShift's", []string{"OUTPUT", "FORWARD"}},
	} {
		t.Run(rules.name, func(t *testing.T) {
			t.Parallel()
			l := onNode(bridgePlugin)(t)
			s := l.Stations[0]
			for _, a := range []netip.Addr{s.IPv4, s.IPv6} {
				for _, port := range []uint16{stationPort, guardedPort} {
					s.Namespace.Listen(s.Name, netip.AddrPortFrom(a, port).String())
				}
			}
			text := "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n"
			for _, chain := range rules.chains {
				text += fmt.Sprintf("-A %s -p tcp -m tcp --dport %d --syn -j REJECT\n", chain, guardedPort)
			}
			for _, program := range []string{"iptables-restore", "ip6tables-restore"} {
				restoreRules(t, l.Pod, program, text+"COMMIT\n")
			}
			row := []string{rules.name, egress(t, s, Station{Namespace: l.Pod, IPv4: l.IPv4, IPv6: l.IPv6}.dial)}
			for _, b := range meshBindings {
				cell := ""
				t.Run(string(b.name), func(t *testing.T) { cell = l.checkEgress(t, b.binding, s) })
				row = append(row, cell)
			}
			if line := "| " + strings.Join(row, " | ") + " |"; !strings.Contains(string(documented), "\n"+line+"\n") {
				t.Errorf("%s lacks the row\n%s", overview, line)
			}
		})
	}
}

// checkEgress gives the pod's network to a guest, measures, and runs Teardown.
func (l *Instance) checkEgress(t *testing.T, b infra.Binding, s Station) string {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	before := l.Pod.Settled()
	w := l.mustSetup(ctx, t, b)
	cell := egress(t, s, w.boot(ctx, t).DialTCP)
	w.end(ctx, t)
	l.checkRestored(t, w.config.State, before)
	return cell
}

// egress returns the cell for what becomes of connections to the guarded port. A connection to another port has to
// work.
func egress(t *testing.T, s Station, dial dialer) string {
	t.Helper()
	cells := map[string]bool{}
	for _, a := range []netip.Addr{s.IPv4, s.IPv6} {
		nstest.Eventually(t, func() error {
			_, err := meshConverse(t.Context(), dial, netip.AddrPortFrom(a, stationPort), "")
			return err
		})
		_, err := meshConverse(t.Context(), dial, netip.AddrPortFrom(a, guardedPort), "")
		switch {
		case err == nil:
			cells["passes"] = true
		case strings.Contains(err.Error(), "refused"):
			cells["refused"] = true
		default:
			t.Errorf("%s at port %d: %v, want an answer or a refusal", s.Name, guardedPort, err)
		}
	}
	if len(cells) != 1 {
		t.Errorf("IPv4 and IPv6 differ: %v", cells)
	}
	if cells["refused"] {
		return "refused"
	}
	return "passes"
}
