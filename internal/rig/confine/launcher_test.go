package confine

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// launched is a launcher that runs.
type launched struct {
	output func() string
	stop   func() // it has to succeed
}

// launcherLives runs the launcher with the verb serve and its flags, and has it do what it does in its life: serve the
// guest of the VMM, a copy of this program, follow a record, a resolv.conf and a tap that was made anew, and end.
func launcherLives(t *testing.T, n nstest.Network, vmm, resolvConf string, launch func(args string) launched) {
	t.Helper()
	config := wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}, Spec: infra.Spec{Binding: infra.Redirect{}, Owner: nstest.Owner(), State: n.State}}
	setup := func() cache.Record {
		t.Helper()
		r, err := config.Setup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := setup()
	resolver := func(address string) {
		t.Helper()
		if err := os.WriteFile(resolvConf, []byte("nameserver "+address+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	resolver("192.0.2.1")
	p := launch("serve -state " + n.State + " -resolv-conf " + resolvConf + " -events")
	says := func(text string, times int) {
		t.Helper()
		nstest.Eventually(t, func() error {
			if strings.Count(p.output(), text) < times {
				return errors.New("the launcher does not say " + text + ":\n" + p.output())
			}
			return nil
		})
	}
	lease := func() {
		t.Helper()
		out, err := startGuest(n, "true", vmm, r)
		if err != nil || !strings.Contains(out, "guest has 10.244.1.7/24 and fd00:244:1::7") {
			t.Errorf("VMM: %v, %s\nlauncher: %s", err, out, p.output())
		}
	}
	says(`"event":"ready"`, 1)
	lease()
	says(`"event":"dhcpv4-leased"`, 1)
	resolver("192.0.2.2")
	says(`"event":"resolv-conf-changed"`, 1)
	config.Options.Hostname = "vm1"
	setup()
	says(`"event":"record-changed"`, 1)
	n.Pod.IP("link del eth0-dhcp")
	says(`"event":"tap-lost"`, 1)
	setup()
	says(`"event":"attached"`, 2)
	lease()
	p.stop()
	if err := config.Teardown(t.Context()); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(p.output()) {
		// The kernel takes a link down before it deletes it: a router advertisement of that moment cannot be written.
		if strings.Contains(line, "-failed") && !strings.Contains(line, "input/output error") {
			t.Errorf("the launcher complains: %s", line)
		}
	}
}
