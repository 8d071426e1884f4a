package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// flowsOf is a FollowFlows that runs.
type flowsOf struct {
	t    *testing.T
	mu   sync.Mutex
	list []phase1.Flow
	stop func()
}

// followFlows returns when FollowFlows follows.
func followFlows(t *testing.T, n phase1.NIC) *flowsOf {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f, follows, done := &flowsOf{t: t}, make(chan struct{}, 8), make(chan error, 1)
	n.Progress = func(text string) {
		if strings.Contains(text, "follows the guest's flows") {
			follows <- struct{}{}
		}
	}
	go func() {
		done <- n.FollowFlows(ctx, func(one phase1.Flow) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.list = append(f.list, one)
		})
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("FollowFlows: %v", err)
		}
	})
	t.Cleanup(f.stop)
	select {
	case <-follows:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return f
}

// reported are the flows with the event.
func (f *flowsOf) reported(event string) (list []phase1.Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.list {
		if one.Event == event {
			list = append(list, one)
		}
	}
	return list
}

// sent are the packets and octets that a rule of nft(8) matches in the namespace before NAT.
func sent(t *testing.T, n *nstest.Namespace, matches ...string) func() []phase1.FlowCount {
	t.Helper()
	rules := "add table inet sent; delete table inet sent; add table inet sent; add chain inet sent c { type filter hook prerouting priority -310; };"
	for _, m := range matches {
		rules += " add rule inet sent c " + m + " counter;"
	}
	n.Exec("nft", rules)
	return func() (counts []phase1.FlowCount) {
		for _, line := range strings.Split(n.Exec("nft", "list", "chain", "inet", "sent", "c"), "\n") {
			if _, after, is := strings.Cut(line, "counter packets "); is {
				var c phase1.FlowCount
				if _, err := fmt.Sscanf(after, "%d bytes %d", &c.Packets, &c.Octets); err != nil {
					t.Fatal(line)
				}
				counts = append(counts, c)
			}
		}
		return counts
	}
}

// flush has the namespace forget all connections, so that they end.
func flush(t *testing.T, n *nstest.Namespace) {
	t.Helper()
	in(t, n, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// key is what distinguishes the flows of a test.
func key(f phase1.Flow) string {
	return fmt.Sprint(f.Protocol, " ", f.Guest.Source.Addr(), " ", f.Guest.Destination)
}

// TestFlows: what the guest opens and what is opened to it begins and ends once, with the addresses of both sides, the
// entry, and as many octets as nft(8) counts. What is refused does not begin, and what the namespace opens is no flow
// of the guest.
func TestFlows(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachRouter(t, []string{"divert all 9100 :15443", "allow 198.51.100.9 9000-9002", "allow all 9001/udp", "allow 2001:db8:9::9 9000", "allow all icmp", "refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		c.Spec.Flows = true
		setup(t, c)
		s.serveWorld("tcp", 9000, 9200)
		s.serveWorld("udp", 9001)
		guest, beyond, pod, gateway := s.addresses["guest"], s.addresses["beyond"], s.addresses["pod"], s.addresses["guest's gateway"]
		inside := "guest"
		if s.at["pod"] == "guest" { // routed
			guest, inside = pod, "pod"
			gateway = s.addresses["hop"]
		}
		for family := range 2 {
			s.Pod.Serve("proxy", "tcp", netip.AddrPortFrom(gateway[family], 15443))
			s.who["guest"].Serve("guest", "tcp", netip.AddrPortFrom(s.addresses[inside][family], 8000))
			s.World.Serve("world", "tcp", netip.AddrPortFrom(s.addresses["gateway"][family], 8004))
		}
		if err := c.Pin(t.Context(), phase1.Pin{Addresses: beyond[:], Ports: []infra.Ports{{First: 9200}}, Life: time.Hour, Name: "*.registry.example"}); err != nil {
			t.Fatal(err)
		}
		flush(t, s.Pod)
		var matches []string
		for family, is := range []string{"ip", "ip6"} {
			match := func(what, from, to string) {
				matches = append(matches, fmt.Sprintf("%s %saddr %v %s", is, from, beyond[family], what), fmt.Sprintf("%s %saddr %v %s", is, to, beyond[family], strings.NewReplacer("dport", "sport", "echo-request", "echo-reply").Replace(what)))
			}
			match("tcp dport 9000", "d", "s")
			match("udp dport 9001", "d", "s")
			match([]string{"icmp type echo-request", "icmpv6 type echo-request"}[family], "d", "s")
		}
		counts := sent(t, s.Pod, matches...)
		f := followFlows(t, c.NIC)
		want := map[string]phase1.Flow{}
		counted := map[string]int{} // at counts
		at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
		for family := range 2 {
			ask := func(protocol, from, to, answers string) {
				t.Helper()
				q, err := s.question(protocol, family, exchange{from: from, to: to})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(q.Close)
				answer, err := q.Answer(patience)
				if err != nil || !strings.HasPrefix(answer, answers) {
					t.Fatalf("%s, %s: %q, %v", protocol, to, answer, err)
				}
				if protocol == "tcp" {
					if err := q.Echo(100_000, patience); err != nil {
						t.Fatal(err)
					}
				}
			}
			add := func(w phase1.Flow, counter int) {
				w.NIC = "eth0"
				if want[key(w)] = w; counter >= 0 {
					counted[key(w)] = 6*family + counter
				}
			}
			host := []string{"198.51.100.9 9000-9002/tcp", "2001:db8:9::9 9000/tcp"}[family]
			outgoing := func(protocol string, port uint16, entry string) phase1.Flow {
				return phase1.Flow{ByGuest: true, Protocol: protocol, List: "egress", Entry: entry,
					Guest: phase1.FlowEnds{Source: at(guest[family], 0), Destination: at(beyond[family], port)}, Network: phase1.FlowEnds{Source: at(pod[family], 0), Destination: at(beyond[family], port)}}
			}
			ask("tcp", "guest", "beyond:9000", "world:9000")
			add(outgoing("tcp", 9000, "allow "+host), 0)
			ask("udp", "guest", "beyond:9001", "world:9001")
			add(outgoing("udp", 9001, "allow all 9001/udp"), 2)
			s.who["guest"].Exec("ping", "-c1", "-s", "777", "-W", "20", beyond[family].String())
			add(outgoing([]string{"icmp", "icmpv6"}[family], 0, "allow all icmp"), 4)
			ask("tcp", "guest", "beyond:9200", "world:9200")
			pinned := outgoing("tcp", 9200, "refuse all")
			pinned.Pinned, pinned.Name = true, "*.registry.example"
			add(pinned, -1)
			ask("tcp", "guest", "beyond:9100", "proxy:15443")
			diverted := outgoing("tcp", 9100, "divert all 9100/tcp :15443")
			diverted.Network = phase1.FlowEnds{Source: at(guest[family], 0), Destination: at(gateway[family], 15443)}
			add(diverted, -1)
			ask("tcp", "world", "pod:8000", "guest:8000")
			peer := s.addresses["gateway"][family]
			add(phase1.Flow{Protocol: "tcp", Guest: phase1.FlowEnds{Source: at(peer, 0), Destination: at(guest[family], 8000)}, Network: phase1.FlowEnds{Source: at(peer, 0), Destination: at(pod[family], 8000)}}, -1)
			ask("tcp", "pod", "gateway:8004", "world:8004")
			s.refused(t, "tcp", family, "beyond:9300")
		}
		// same compares flows with the wanted ones. The ports that the kernel chose are of one flow on each side.
		same := func(event string, have []phase1.Flow, number []phase1.FlowCount) error {
			left := len(want)
			for _, one := range have {
				w, known := want[key(one)]
				if !known {
					return fmt.Errorf("%s: %+v is none of the guest's, or it is refused", event, one)
				}
				left--
				if one.Protocol == "tcp" && (one.Guest.Source.Port() == 0 || one.Network.Source.Port() == 0) || (one.ICMP != nil) != strings.HasPrefix(one.Protocol, "icmp") {
					return fmt.Errorf("%s: %+v", event, one)
				}
				if one.ICMP != nil && one.ICMP.Type != 8 && one.ICMP.Type != 128 || one.Time.IsZero() || one.Began.IsZero() || one.Lost != 0 {
					return fmt.Errorf("%s: %+v", event, one)
				}
				if (one.FromGuest == nil) != (event == "begin") || (one.ToGuest == nil) != (event == "begin") {
					return fmt.Errorf("%s: %+v has octets, or none", event, one)
				}
				if i, is := counted[key(one)]; is && number != nil && (*one.FromGuest != number[i] || *one.ToGuest != number[i+1]) {
					return fmt.Errorf("%s: %+v carried %+v and %+v, nft says %v", event, one, *one.FromGuest, *one.ToGuest, number[i:i+2])
				}
				one.Guest.Source, one.Network.Source = at(one.Guest.Source.Addr(), 0), at(one.Network.Source.Addr(), 0)
				one.Event, one.Time, one.Began, one.FromGuest, one.ToGuest, one.ICMP = "", time.Time{}, time.Time{}, nil, nil, nil
				if one != w {
					return fmt.Errorf("%s: %+v, want %+v", event, one, w)
				}
			}
			if left != 0 {
				return fmt.Errorf("%s: %d flows, want %d", event, len(have), len(want))
			}
			return nil
		}
		nstest.Eventually(t, func() error { return same("begin", f.reported("begin"), nil) })
		var number []phase1.FlowCount
		nstest.Eventually(t, func() error { // an acknowledgement may still be on its way
			number = counts()
			open, err := c.NIC.Flows(t.Context())
			if err == nil {
				err = same("open", open, number)
			}
			time.Sleep(300 * time.Millisecond)
			if now := counts(); err == nil && !slices.Equal(now, number) {
				err = errors.New("packets are on their way")
			}
			return err
		})
		flush(t, s.Pod)
		nstest.Eventually(t, func() error { return same("end", f.reported("end"), number) })
		for _, end := range f.reported("end") {
			if !end.Began.Before(end.Time) || end.Time.Sub(end.Began) > time.Hour {
				t.Errorf("from %v to %v", end.Began, end.Time)
			}
		}
		check(t, c)
	})
}

// await waits until so many flows with the event are reported, and returns them.
func (f *flowsOf) await(event string, n int) (list []phase1.Flow) {
	f.t.Helper()
	nstest.Eventually(f.t, func() error {
		if list = f.reported(event); len(list) < n {
			return fmt.Errorf("%d flows have a report %q, want %d", len(list), event, n)
		}
		return nil
	})
	return list
}

// TestFlowsAnotherList: what begins after another Setup is judged by its list, and the end says what the begin said.
// Several calls follow at once, each sees all.
func TestFlowsAnotherList(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	c.Spec.Flows, c.Egress = true, policy(t, "allow 198.51.100.9", "refuse all")
	s.wire(t, "guest", c)
	s.serveWorld("udp", 9000, 9001) // nothing follows the answers
	flush(t, s.Pod)
	first, second := followFlows(t, c.NIC), followFlows(t, c.NIC)
	s.reached(t, "udp", 0, "beyond:9000")
	first.await("begin", 1)
	c.Egress, c.EgressWithin = nil, policy(t, "refuse private", "allow all")
	setup(t, c)
	s.reached(t, "udp", 0, "beyond:9001")
	flush(t, s.Pod)
	for _, f := range []*flowsOf{first, second} {
		for event, list := range map[string][]phase1.Flow{"begin": f.await("begin", 2), "end": f.await("end", 2)} {
			said := map[uint16]string{}
			for _, one := range list {
				said[one.Guest.Destination.Port()] = one.List + ": " + one.Entry
			}
			if len(list) != 2 || said[9000] != "egress: allow 198.51.100.9" || said[9001] != "egressWithin: allow all" {
				t.Errorf("%s: %v", event, said)
			}
		}
	}
}

// TestFlowsReadAgain: when another list could not be read, FollowFlows reads it again.
func TestFlowsReadAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	c.Spec.Flows, c.Egress = true, policy(t, "allow 198.51.100.9", "refuse all")
	s.wire(t, "guest", c)
	s.serveWorld("udp", 9000)
	n := c.NIC
	n.MostRead = 32 << 10
	f := followFlows(t, n)
	s.Pod.IP("link add many type bridge")
	var batch strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&batch, "addr add 10.77.%d.%d/32 dev many\n", i/250, i%250)
	}
	file := filepath.Join(t.TempDir(), "batch")
	writeFile(t, file, batch.String())
	s.Pod.IP("-batch " + file)
	c.Egress = policy(t, "allow all")
	setup(t, c)
	s.reached(t, "udp", 0, "beyond:9000")
	for _, one := range f.await("begin", 1) {
		if one.Entry != "allow 198.51.100.9" {
			t.Errorf("%+v is judged by the other list, which cannot be read", one)
		}
	}
	s.Pod.IP("link del many")
	nstest.Eventually(t, func() error {
		s.reached(t, "udp", 0, "beyond:9000")
		list := f.reported("begin")
		if last := list[len(list)-1]; last.Entry != "allow all" {
			return fmt.Errorf("%+v is judged by the earlier list", last)
		}
		return nil
	})
}

// TestFlowsOfOneNIC: of two NICs in a namespace, each one's guest has its own flows.
func TestFlowsOfOneNIC(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	secondNIC(s.Network, "192.0.2.7/24")
	first, second := config(s.Network, infra.Masquerade{}), configOfSecondNIC(s.Network, infra.Masquerade{IPv4: netip.MustParsePrefix("10.0.3.0/24")})
	first.Spec.Flows = true
	setup(t, second)
	s.wire(t, "guest", first)
	s.serveWorld("udp", 9001)
	flush(t, s.Pod)
	ofFirst, ofSecond := followFlows(t, first.NIC), followFlows(t, second.NIC)
	s.reached(t, "udp", 0, "beyond:9001")
	s.reached(t, "udp", 1, "beyond:9001")
	for _, one := range ofFirst.await("begin", 2) {
		if one.NIC != "eth0" || one.List != "" || one.Entry != "" {
			t.Errorf("without a policy: %+v", one)
		}
	}
	if list := ofSecond.reported("begin"); len(list) > 0 {
		t.Errorf("the second NIC has %+v", list)
	}
	if open, err := second.NIC.Flows(t.Context()); err != nil || len(open) > 0 {
		t.Errorf("the second NIC has open %+v, %v", open, err)
	}
}

// TestFlowsLost: what was lost while f did not return is counted, each report once.
func TestFlowsLost(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	c.Spec.Flows = true
	s.wire(t, "guest", c)
	s.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=3600") // none ends meanwhile
	flush(t, s.Pod)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held, release := make(chan struct{}), make(chan struct{})
	var hold sync.Once
	var mu sync.Mutex
	reports, lost := 0, 0
	follows, done := make(chan struct{}, 8), make(chan error, 1)
	n := c.NIC
	n.Progress = func(string) { follows <- struct{}{} }
	go func() {
		done <- phase1.FollowFlowsIn(ctx, n, 1, func(f phase1.Flow) { // the kernel's least
			hold.Do(func() { close(held); <-release })
			mu.Lock()
			defer mu.Unlock()
			reports, lost = reports+1, lost+f.Lost
		})
	}()
	<-follows
	counts := sent(t, s.Pod, "iifname eth0-tap udp dport 1-65535")
	send := func(first, n int) {
		for i := range n {
			dial(t, s.who["guest"], "udp", netip.AddrPortFrom(nstest.Beyond4, uint16(first+i))).Write([]byte("x"))
		}
	}
	send(10_000, 1)
	<-held
	const many = 200
	send(20_000, many)
	nstest.Eventually(t, func() error {
		if have := counts()[0].Packets; have < many+1 {
			return fmt.Errorf("%d packets have arrived", have)
		}
		return nil
	})
	close(release)
	tries := 0
	nstest.Eventually(t, func() error { // a report says what was lost before, and takes its time
		if tries%64 == 0 {
			dial(t, s.who["guest"], "udp", netip.AddrPortFrom(nstest.Beyond4, 9)).Write([]byte("x"))
		}
		tries++
		mu.Lock()
		defer mu.Unlock()
		if all := int(counts()[0].Packets); lost == 0 || reports+lost != all {
			return fmt.Errorf("%d reports, %d lost, of %d", reports, lost, all)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFlowsOfNothing: a NIC that is not wired, or is wired without tracking, has no flows.
func TestFlowsOfNothing(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Bridge{})
	for _, want := range []string{"not wired", "under the bridge binding nobody tracks"} {
		if _, err := c.NIC.Flows(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Flows: %v, want %q", err, want)
		}
		if err := c.FollowFlows(t.Context(), func(phase1.Flow) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("FollowFlows: %v, want %q", err, want)
		}
		setup(t, c)
	}
}

// TestFlowsOwn: a program can follow the flows of its own namespace, without CAP_SYS_ADMIN.
func TestFlowsOwn(t *testing.T) {
	t.Parallel()
	nstest.NeedRoot(t, "it has no capabilities to choose from")
	c := container{Network: nstest.NewNetwork(t)}
	c.mustAgent(t, "setup", "-own", "-binding", "masquerade")
	c.mustAgent(t, "flows", "-own")
	follow := c.command(t, nstest.Program(t, "examples/guestwire-agent"), "flows", "-own", "-nic", "eth0", "-follow")
	var out nstest.Output
	follow.Stdout, follow.Stderr = &out, &out
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- follow.Wait() }()
	defer func() {
		follow.Process.Kill()
		<-ended
	}()
	nstest.Eventually(t, func() error {
		if !strings.Contains(out.String(), "follows the guest's flows") {
			return fmt.Errorf("flows -follow says %s", &out)
		}
		return nil
	})
}

// TestFlowsLacking: without Spec.Flows, both calls report what flows lack, also where the kernel reports none.
func TestFlowsLacking(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Masquerade{})
	said := func() (list, follow string) {
		t.Helper()
		one := c.NIC
		one.Progress = func(text string) { list += text + "\n" }
		if _, err := one.Flows(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		one.Progress = func(text string) { follow += text + "\n"; cancel() }
		if err := one.FollowFlows(ctx, func(phase1.Flow) {}); err != nil {
			t.Fatal(err)
		}
		return list, follow
	}
	for _, of := range []struct {
		flows                bool
		events, list, follow string
	}{
		{false, "2", "without octets", "without octets"},
		{false, "0", "without octets", "nf_conntrack_events is 0"},
		{true, "2", "", ""},
	} {
		c.Spec.Flows = false
		setup(t, c)
		n.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_events="+of.events)
		c.Spec.Flows = of.flows
		setup(t, c)
		list, follow := said()
		if !strings.Contains(list, of.list) || !strings.Contains(follow, of.follow) || of.flows && (list != "" || strings.Contains(follow, "octets")) {
			t.Errorf("flows %t, events %s: Flows says %q, FollowFlows %q", of.flows, of.events, list, follow)
		}
	}
}

// TestFlowsOffloaded: what passes by the flow table is counted for its flow. A Setup without Flows makes a flow table
// that does not count.
func TestFlowsOffloaded(t *testing.T) {
	nstest.KernelDecides(t, "flow tables")
	if !nstest.HasFlowTables() {
		nstest.LeaveOut(t, "this kernel has no flow tables")
	}
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	for _, counts := range []bool{false, true, false, true} {
		c.Spec.Flows = counts
		if s.who["guest"] == nil {
			s.wire(t, "guest", c)
		} else {
			setup(t, c)
		}
		check(t, c)
		if list := flowTables(s.Network); strings.Contains(list, "counter") != counts || !strings.Contains(list, "eth0-tap") {
			t.Errorf("counts %t:\n%s", counts, list)
		}
	}
	s.serveWorld("tcp", 9000)
	q, err := s.question("tcp", 0, exchange{from: "guest", to: "beyond:9000"})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if answer, err := q.Answer(patience); err != nil {
		t.Fatal(answer, err)
	}
	const size = 1 << 20
	for round := 1; round <= 2; round++ {
		if err := q.Echo(size, patience); err != nil {
			t.Fatal(err)
		}
		if list := connections(s.Pod, "tcp", "dport=9000 ", offloaded); len(list) != 1 {
			t.Errorf("%d connections pass by the flow table, want 1", len(list))
		}
		open, err := c.NIC.Flows(t.Context())
		open = slices.DeleteFunc(open, func(f phase1.Flow) bool { return f.Guest.Destination.Port() != 9000 })
		if err != nil || len(open) != 1 {
			t.Fatalf("%+v, %v", open, err)
		}
		for _, c := range []*phase1.FlowCount{open[0].FromGuest, open[0].ToGuest} {
			if least := uint64(round * size); c == nil || c.Octets < least || c.Octets > least*5/4 {
				t.Errorf("%+v, want %d octets and their headers", c, least)
			}
		}
	}
}
