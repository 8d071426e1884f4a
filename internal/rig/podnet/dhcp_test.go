package podnet

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestLease wires a NIC whose address CNI's dhcp plugin has leased, for longer than the lease lasts. The plugin's
// daemon goes on renewing and never has to begin anew, and the guest is reached all the time.
func TestLease(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	t.Parallel()
	for _, test := range []struct {
		name, config string
		binding      infra.Binding
	}{
		{"bridge, bridge", bridgedPlugin, infra.Bridge{}},
		{"bridge, macspoofchk, redirect", bridgedPlugin + `, "macspoofchk": true`, infra.Redirect{}},
		{"macvlan, redirect", macvlanPlugin, infra.Redirect{}},
		{"bridge, masquerade", bridgedPlugin, infra.Masquerade{}},
		{"bridge, routed", bridgedPlugin, infra.Routed{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			// The daemon waits ten seconds for an answer, which is longer than the lease, so it does not survive one
			// lost frame. A busy machine loses one at times.
			for range 3 {
				said := keepsLease(t, test.config, test.binding)
				if said == "" {
					return
				}
				t.Logf("the dhcp daemon got no answer:\n%s", said)
			}
			t.Error("the dhcp daemon got no answer in three tries")
		})
	}
}

// keepsLease returns what the daemon says if it got no answer, and else nothing.
func keepsLease(t *testing.T, config string, binding infra.Binding) (unanswered string) {
	l, s := withServer(t, config)
	if l.IPv4 != leasedAddress {
		t.Fatalf("CNI's result has %v, want %v", l.IPv4, leasedAddress)
	}
	w := l.ready(t)
	known := w.askProcess(t, tcp).answeredBy("guest")
	asked := slices.Collect(maps.Keys(known))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	wired := l.mustSetup(ctx, t, binding)
	for _, warning := range wired.record.Warnings {
		t.Logf("warning: %s", warning)
	}
	from := hostOf(t, wired.bootAnswering(ctx, t))
	begin := time.Now()
	said := len(s.client.String())
	for renewals := 0; renewals < 2 || time.Since(begin) < leaseTime*5/4; {
		w.ask(t, from, asked, known)
		now := s.client.String()[said:]
		if renewals = strings.Count(now, "lease renewed"); ctx.Err() != nil {
			t.Fatalf("%d renewals; the daemon says\n%s", renewals, now)
		}
		if strings.Contains(now, "retrying") {
			unanswered = now
			break
		}
		time.Sleep(time.Second) // the pace of the questions
	}
	for _, r := range s.requests() {
		if unanswered == "" && r.at.After(begin) && (r.kind != dhcpv4.MessageTypeRequest || !r.renews) {
			t.Errorf("%v after Setup the daemon sent a %v: it has begun anew", r.at.Sub(begin), r.kind)
		}
	}
	if err := wired.config.Check(ctx); err != nil && unanswered == "" { // a lease that ends takes the address away
		t.Error(err)
	}
	if state := l.Pod.IP("-br link show"); strings.Contains(state, "DOWN") && binding.Kind() != "bridge" {
		t.Errorf("a link is down:\n%s", state)
	}
	wired.end(ctx, t)
	if unanswered == "" {
		l.Check(t)
	}
	l.Delete(t)
	return unanswered
}

var leases = flag.Bool("leases", false, "in TestLeaseClients, run also the clients that take no short leases: 45 s")

// TestLeaseClients redirects a NIC whose address a DHCP client in the pod has leased. The client keeps the lease for
// longer than the lease lasts: it never begins anew, and the address stays on the NIC. Such a client asks by a UDP
// socket first, which is mute, and then by a packet socket (state REBINDING).
func TestLeaseClients(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	t.Parallel()
	for _, client := range []struct {
		name, start string
		packages    []string
		lease       time.Duration // the shortest that suits the client
		late        time.Duration // from the server's answer to the time from which the client counts
		long        bool
	}{
		{"dhclient", startDHClient, []string{"dhclient"}, 12 * time.Second, 0, false},
		{"systemd-networkd", startNetworkd, nil, 12 * time.Second, 0, false},
		{"dhcpcd", startDHCPCD, []string{"dhcpcd"}, 20 * time.Second, 6 * time.Second, true},
		{"udhcpc", "udhcpc -f -i eth0 -t 20 -T 1 -A 1", []string{"busybox", "udhcpc"}, 32 * time.Second, 0, true},
	} {
		if client.long && !*leases {
			continue
		}
		t.Run(client.name, func(t *testing.T) {
			t.Parallel()
			_, router, stations := lan(t)
			pod := nstest.New(t, "pod")
			disableSolicitations(pod)
			connectNamespaces(pod, "eth0", router, "pod")
			router.IP("link set pod master lan0")
			s := serveLeases(t, router, "lan0", client.lease)
			host := machine.New(t, pod, client.packages...)
			if _, err := host.Run("(" + client.start + ") >/run/log 2>&1 </dev/null &"); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if t.Failed() {
					out, _ := host.Run("cat /run/log")
					t.Logf("the server saw %+v, the client says\n%s\n%s", s.requests(), out, pod.IP("addr"))
				}
				host.Run("kill -9 -1") // it kills its own shell, too
			}()
			leased := func() error {
				if out := pod.IP("-4 addr show dev eth0"); !strings.Contains(out, " "+leasedAddress.String()+"/24 ") {
					return fmt.Errorf("eth0 has %q", out)
				}
				return nil
			}
			nstest.Eventually(t, leased)
			l := &Instance{Pod: pod, NIC: "eth0", IPv4: leasedAddress, Stations: stations}
			w := l.ready(t)
			known := w.askProcess(t, tcp).answeredBy("guest")
			asked := slices.Collect(maps.Keys(known))
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			wiring := l.mustSetup(ctx, t, infra.Redirect{})
			from := hostOf(t, wiring.bootAnswering(ctx, t))
			wired := time.Now()
			for renewals := 0; renewals < 1 || time.Since(wired) < client.lease*5/4; {
				w.ask(t, from, asked, known)
				renewals = 0
				last := wired
				for _, r := range s.requests() {
					switch {
					case r.at.Before(wired):
						last = r.at
					case r.kind != dhcpv4.MessageTypeRequest || !r.renews:
						t.Fatalf("%v after Setup the client sent a %v: it has begun anew", r.at.Sub(wired), r.kind)
					case r.at.Sub(last) > client.lease+client.late:
						t.Fatalf("the lease ended: no request for %v", r.at.Sub(last))
					default:
						renewals, last = renewals+1, r.at
					}
				}
				if err := leased(); err != nil || ctx.Err() != nil {
					t.Fatalf("%d renewals, %v", renewals, err)
				}
				time.Sleep(time.Second) // the pace of the questions
			}
			if err := wiring.config.Check(ctx); err != nil {
				t.Error(err)
			}
			wiring.end(ctx, t)
			if err := leased(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The commands start clients in a copy of the machine. dhclient must ask often, as the lease is short. The package's
// installation creates dhcpcd's user. networkd waits for udev where /sys can be written.
const (
	startDHClient = "echo 'supersede dhcp-rebinding-time 8; initial-interval 1; backoff-cutoff 2;' >>/etc/dhcp/dhclient.conf; dhclient -4 -d eth0"
	startDHCPCD   = "useradd --system --home /usr/lib/dhcpcd --shell /bin/false dhcpcd; echo nodelay >>/etc/dhcpcd.conf; dhcpcd -4 --nobackground --debug eth0"
	startNetworkd = `mount -o remount,ro,bind /sys || mount -t sysfs -o ro sys /sys
mkdir -p /run/systemd/network /run/systemd/netif/links /run/systemd/netif/leases
chown -R systemd-network: /run/systemd/netif
printf '[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\n' >/run/systemd/network/eth0.network
SYSTEMD_LOG_LEVEL=debug SYSTEMD_LOG_TARGET=console /lib/systemd/systemd-networkd`
)
