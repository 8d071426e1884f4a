package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"

	"golang.org/x/sys/unix"
)

// dropped is what the tables in the namespace have dropped, by reason, as nft(8) says.
func dropped(t *testing.T, ns *nstest.Namespace) map[string]int {
	t.Helper()
	counts := map[string]int{}
	reason := regexp.MustCompile(`^(drop|up)-(.*)`)
	var of []string
	for line := range strings.Lines(ns.Exec("nft", "list", "ruleset")) {
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && words[0] == "chain":
			of = reason.FindStringSubmatch(words[1])
		case of != nil && slices.Contains(words, "counter"):
			n, err := strconv.Atoi(words[slices.Index(words, "counter")+2])
			if err != nil {
				t.Fatalf("nft: %q", line)
			}
			counts[of[2]] += n
		}
	}
	return counts
}

// more is what has been dropped since, as text: "ip-spoof 2, mac-spoof 1". The namespace's own packets, which redirect
// drops at any time, are left out.
func more(before, now map[string]int) string {
	var words []string
	for _, reason := range slices.Sorted(maps.Keys(now)) {
		if n := now[reason] - before[reason]; n != 0 && reason != "namespace-output" {
			words = append(words, fmt.Sprintf("%s %d", reason, n))
		}
	}
	return strings.Join(words, ", ")
}

// counted is what Counters says of drops, in the form of dropped.
func counted(t *testing.T, c wired.NIC) map[string]int {
	t.Helper()
	all, err := c.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, d := range all.Drops {
		counts[d.Reason] = int(d.Packets)
	}
	return counts
}

// tunnels are packets without ports: GRE, ESP, and IP in IP.
func tunnels(w *wire) (list [][]byte) {
	list = append(list, w.link.Packet(unix.IPPROTO_GRE, w.link.IPv4, w.link.Far4, make([]byte, 40)))
	list = append(list, w.link.Packet(unix.IPPROTO_ESP, w.link.IPv6, w.link.Far6, make([]byte, 40)))
	inner := w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, w.link.Far4, frames.Datagram(1, 2, nil))[14:]
	return append(list, w.link.Packet(unix.IPPROTO_IPIP, w.link.IPv4, w.link.Far4, inner))
}

// TestDropsBehindTheFilter: what is dropped outside the guest filter is counted for its reason, too.
func TestDropsBehindTheFilter(t *testing.T) {
	t.Parallel()
	behind := netip.MustParseAddr("192.0.2.77")
	for _, c := range []struct {
		name   string
		create []string
		spec   infra.Spec
		setup  func(n nstest.Network)
		// Frames of the guest, of the world, or what the namespace does.
		guest, world func(w *wire) [][]byte
		namespace    string
		other        bool // the namespace's routes lead by another link
		forwards     bool // that link forwards
		want         string
	}{
		{name: "a service of the namespace", spec: infra.Spec{Binding: infra.Masquerade{}}, want: "namespace-service 2",
			guest: func(w *wire) [][]byte {
				return [][]byte{w.link.Ask(6, w.link.IPv4, w.link.Gateway4, 22), w.link.Ask(17, w.link.IPv6, w.link.Gateway6, 53)}
			}},
		{name: "a service that is opened", spec: infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{Open: []infra.Ports{{First: 22}}}}, want: "",
			guest: func(w *wire) [][]byte { return [][]byte{w.link.Ask(6, w.link.IPv4, w.link.Gateway4, 22)} }},
		{name: "no connection", spec: infra.Spec{Binding: infra.Masquerade{}}, want: "no-connection 1",
			guest: func(w *wire) [][]byte { return kind(frames.Legitimate(w.link), "IPv4 port unreachable") }},
		{name: "loopback, without the filter", spec: infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{Off: true}}, want: "loopback 2",
			guest: func(w *wire) [][]byte {
				return slices.Concat(kind(frames.Hostile(w.link), "IPv4 UDP to 127.0.0.1"), kind(frames.Hostile(w.link), "IPv4 from source 127.0.0.1"))
			}},
		{name: "tunnels where ports are listed", spec: infra.Spec{Binding: infra.Masquerade{Ports: []infra.Ports{{First: 80}}}}, want: "no-ports 3", guest: tunnels},
		{name: "tunnels where everything is forwarded", spec: infra.Spec{Binding: infra.Masquerade{}}, want: "", guest: tunnels},
		{name: "tunnels beside proxies", spec: infra.Spec{Binding: infra.Masquerade{Sidecar: &infra.Sidecar{}}}, want: "no-ports 3", guest: tunnels},
		{name: "tunnels by another link", spec: infra.Spec{Binding: infra.Masquerade{}}, want: "other-link 3", guest: tunnels, other: true},
		{name: "tunnels by another link that forwards", spec: infra.Spec{Binding: infra.Masquerade{}}, want: "no-ports 3", guest: tunnels, other: true, forwards: true},
		{name: "a connection too many", spec: infra.Spec{Binding: infra.Masquerade{MaxConnections: 1}}, want: "connection-limit 1",
			guest: func(w *wire) [][]byte { return [][]byte{w.link.Ask(17, w.link.IPv4, w.link.Far4, 5001)} }},
		{name: "IPv6 to a gateway without", spec: infra.Spec{Binding: infra.Masquerade{}}, want: "no-ipv6 1",
			create: []string{"-6 route flush dev eth0", "-6 addr flush dev eth0"},
			guest:  func(w *wire) [][]byte { return v6Only(w, "MLDv2 report") }},
		{name: "to the guest's own address", spec: infra.Spec{Binding: infra.Masquerade{Ports: []infra.Ports{{First: 80}}}}, want: "not-forwarded 1",
			world: func(w *wire) [][]byte { return [][]byte{w.fromWorld(netip.MustParseAddr("10.0.2.2"))} }},
		{name: "through the namespace", spec: infra.Spec{Binding: infra.Masquerade{}}, want: "not-forwarded 1",
			world: func(w *wire) [][]byte { return [][]byte{w.fromWorld(behind)} }},
		{name: "a packet of the namespace", spec: infra.Spec{Binding: infra.Redirect{}}, want: "namespace-output",
			namespace: "ip neigh replace 10.244.1.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent; echo >/dev/udp/10.244.1.1/7777 || true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			for _, line := range c.create {
				n.Pod.IP(line)
			}
			config := config(n, c.spec.Binding)
			config.Guard = c.spec.Guard
			if c.forwards {
				n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
			}
			setup(t, config)
			w := attachDeaf(t, n, true, len(c.create) == 0)
			if c.other {
				for _, line := range []string{
					"link add other type veth peer name end", "link set other up", "link set end up",
					"route add " + w.link.Far4.String() + " dev other", "route add " + w.link.Far6.String() + " dev other",
				} {
					n.Pod.IP(line)
				}
			}
			if c.forwards {
				n.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.other.forwarding=1")
				setup(t, config)
			}
			before := dropped(t, n.Pod)
			if c.guest != nil {
				for _, f := range c.guest(w) {
					if _, err := w.port.Write(f); err != nil {
						t.Fatal(err)
					}
				}
			}
			if c.world != nil {
				if err := w.inject(c.world(w)...); err != nil {
					t.Fatal(err)
				}
			}
			if c.namespace != "" {
				n.Pod.Exec("bash", "-c", c.namespace)
			}
			now := dropped(t, n.Pod)
			if have := more(before, now); c.namespace == "" && have != c.want {
				t.Errorf("dropped %q, want %q", have, c.want)
			}
			if c.namespace != "" && now[c.want] <= before[c.want] {
				t.Errorf("%s: %d, and %d before", c.want, now[c.want], before[c.want])
			}
			have := counted(t, config)
			if now = dropped(t, n.Pod); c.namespace == "" && !maps.Equal(have, now) {
				t.Errorf("Counters says %v, nft %v", have, now)
			}
		})
	}
}

// kind is the frames of a kind.
func kind(list []frames.Kind, name string) [][]byte {
	return list[slices.IndexFunc(list, func(k frames.Kind) bool { return k.Name == name })].Frames
}

// v6Only is a kind that a guest without IPv6 sends by its link-local address.
func v6Only(w *wire, name string) [][]byte {
	l := w.link
	l.IPv6 = netip.MustParseAddr("2001:db8::7")
	return kind(frames.Legitimate(l), name)
}

// fromWorld is a datagram for any address, from the world's end of the NIC to the NIC's MAC.
func (w *wire) fromWorld(to netip.Addr) []byte {
	l := frames.Link{MAC: w.router, IPv4: nstest.Gateway4, Gateway: w.own[0], Far4: to}
	return l.Ask(17, nstest.Gateway4, to, 5001)
}

// TestDropsOfNothing: a NIC that drops nothing has no counters, and nothing to follow.
func TestDropsOfNothing(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Bridge{})
	if all, err := c.Counters(t.Context()); err != nil || all.Drops == nil || len(all.Drops) != 0 || all.FromGuest != nil || all.ToGuest != nil || all.Opened != nil {
		t.Errorf("before Setup: %+v, %v", all, err)
	}
	err := c.FollowDrops(t.Context(), func(phase1.Drop) {})
	if !errors.Is(err, phase1.ErrNotWired) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before Setup: %v, want ErrNotWired", err)
	}
	var field *cache.FieldError
	if _, err := (wired.NIC{NIC: phase1.NIC{Name: c.Name}, Spec: c.Spec}).Counters(t.Context()); !errors.As(err, &field) || field.Field != "netns" {
		t.Errorf("without a namespace: %v", err)
	}
}

// following is a FollowDrops that runs.
type following struct {
	t     *testing.T
	drops chan phase1.Drop
	end   context.CancelFunc
	done  chan error
}

func follow(t *testing.T, c wired.NIC) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &following{t: t, drops: make(chan phase1.Drop, 1<<10), end: cancel, done: make(chan error, 1)}
	go func() { f.done <- c.FollowDrops(ctx, func(d phase1.Drop) { f.drops <- d }) }()
	t.Cleanup(func() { f.stop() })
	return f
}

func (f *following) stop() {
	f.t.Helper()
	f.end()
	if f.done == nil {
		return
	}
	if err := <-f.done; err != nil {
		f.t.Errorf("FollowDrops: %v", err)
	}
	f.done = nil
}

// next is the next drop of another reason than the namespace's own packets.
func (f *following) next() phase1.Drop {
	f.t.Helper()
	for {
		select {
		case d := <-f.drops:
			if d.Reason != "namespace-output" {
				return d
			}
		case err := <-f.done:
			f.t.Fatalf("FollowDrops ended: %v", err)
		case <-time.After(30 * time.Second):
			f.t.Fatal("no drop is reported")
		}
	}
}

// TestFollowDrops: who follows learns of each drop at once, with reason, time, and who sent what. Setup and Check go on
// meanwhile, and another one cannot follow.
func TestFollowDrops(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == "masquerade" {
			nstest.KernelDecides(t, "counters, limits and groups of nflog are modules")
		}
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		w := attachDeaf(t, n, true, true)
		f := follow(t, c)
		hostile := frames.Hostile(w.link)
		guest, gateway := w.link.MAC.String(), w.link.Gateway.String()
		arp := kind(hostile, "ARP reply in the gateway's name")
		// Until it listens, the kernel forgets what it reports.
		nstest.Eventually(t, func() error {
			if _, err := w.port.Write(arp[0]); err != nil {
				return err
			}
			select {
			case <-f.drops:
				return nil
			case <-time.After(100 * time.Millisecond):
				return errors.New("no drop is reported")
			}
		})
		// The report of an earlier try may still come: after it comes that of another frame.
		if _, err := w.port.Write(kind(hostile, "CDP")[0]); err != nil {
			t.Fatal(err)
		}
		for f.next().Reason != "ethertype" {
		}
		setup(t, c)
		check(t, c)
		if err := c.FollowDrops(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "another FollowDrops") {
			t.Errorf("a second one: %v", err)
		}
		for _, want := range []struct{ kind, reason, text string }{
			{"IPv4 from another's MAC", "mac-spoof", fmt.Sprintf("02:00:5e:00:53:66 > %s IPv4 %v:5000 > %v:5001 UDP", gateway, w.link.IPv4, w.link.Far4)},
			{"ARP reply of a foreign address", "arp-spoof", fmt.Sprintf("%s > ff:ff:ff:ff:ff:ff ARP 203.0.113.66 is at %s, says to %v", guest, guest, w.link.IPv4.Next())},
			{"IPv6 TCP SYN from a foreign source", "ip-spoof", fmt.Sprintf("%s > %s IPv6 [2001:db8:bad::66]:5000 > [%v]:80 TCP", guest, gateway, w.link.Far6)},
			{"802.1Q tag", "vlan-tag", fmt.Sprintf("%s > %s VLAN 5 IPv4 %v:5000 > %v:5001 UDP", guest, gateway, w.link.IPv4, w.link.Far4)},
			{"LLDP to a bridge", "bridge-control", guest + " > 01:80:c2:00:00:0e EtherType 0x88cc"},
			{"CDP", "ethertype", guest + " > 01:00:0c:cc:cc:cc LLC"},
			{"router advertisement after hop-by-hop options", "router-advertisement",
				fmt.Sprintf("%s > 33:33:00:00:00:01 IPv6 %v > ff02::1 ICMPv6 type 134, after extension headers", guest, eui64.LinkLocal(w.link.MAC))},
		} {
			before := time.Now()
			if _, err := w.port.Write(kind(hostile, want.kind)[0]); err != nil {
				t.Fatal(err)
			}
			d := f.next()
			if d.Reason != want.reason || d.Text != want.text || d.Lost != 0 {
				t.Errorf("%s: have %+v\nwant %s, %s", want.kind, d, want.reason, want.text)
			}
			if d.Time.Before(before.Add(-time.Minute)) || d.Time.After(time.Now().Add(time.Minute)) {
				t.Errorf("%s: time %v, sent at %v", want.kind, d.Time, before)
			}
		}
		// A flood is counted whole, and reported in part.
		const flood = 2000
		counts := dropped(t, n.Pod)
		start := time.Now()
		for range flood {
			if _, err := w.port.Write(kind(hostile, "ARP operation 9")[0]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.port.Write(arp[0]); err != nil {
			t.Fatal(err)
		}
		reported := 0
		for d := f.next(); d.Reason != "arp-spoof"; d = f.next() {
			reported++
		}
		if most := 20 + 20*int(time.Since(start)/time.Second+1); reported == 0 || reported > most {
			t.Errorf("%d of %d are reported, want at most %d", reported, flood, most)
		}
		if have, want := more(counts, dropped(t, n.Pod)), fmt.Sprintf("arp-spoof 1, malformed %d", flood); have != want {
			t.Errorf("dropped %q, want %q", have, want)
		}
		list := counters(t, c).Drops
		at := slices.IndexFunc(list, func(d phase1.Count) bool { return d.Reason == "malformed" })
		if want := (phase1.Count{Reason: "malformed", Meaning: firewall.Malformed.Meaning(), Packets: flood, Bytes: 28 * flood}); at < 0 || list[at] != want {
			t.Errorf("Counters: %v; want %v", list, want)
		}
		// The end of one lets the next one in, once no process that this one has just started holds the socket.
		f.stop()
		nstest.Eventually(t, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			return c.FollowDrops(ctx, func(phase1.Drop) {})
		})
	})
}
