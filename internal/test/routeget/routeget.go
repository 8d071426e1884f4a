// Package routeget judges package fib by the kernel: both say where random packets of a namespace go.
package routeget

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// packet is what ip(8) asks the kernel about.
type packet struct {
	fib.Source
	to netip.Addr
}

// command is the question to ip(8). The answer is the route itself, and not what becomes of the packet.
func (p packet) command() string {
	c := fmt.Sprintf("route get fibmatch %v tos %#x mark %#x", p.to, p.TOS, p.Mark)
	if len(p.From) > 0 {
		c += fmt.Sprintf(" from %v", p.From[0])
	}
	if p.In != "lo" {
		c += " iif " + p.In
	}
	return c
}

// Judge compares the answers for a number of packets. It returns how many of them have a route, and how many a rule
// decides that a Snapshot cannot hold. The namespace forwards afterwards.
func Judge(t testing.TB, pod *nstest.Namespace, r *rand.Rand, count int) (routed, other int) {
	t.Helper()
	pod.Exec("sh", "-c", "cd /proc/sys/net; for i in ipv4/conf/*/rp_filter; do echo 0 >$i; done; for i in ipv4/conf/*/forwarding ipv6/conf/*/forwarding; do echo 1 >$i; done")
	var s netstate.Snapshot
	if err := netns.Do(pod.File, func() error {
		n, err := kernel.Open()
		if err != nil {
			return err
		}
		defer n.Close()
		s, err = n.Snapshot(netstate.NamesFor("eth0", ""), nil, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	names := map[int]string{}
	for _, l := range s.Links {
		names[l.Index] = l.Name
	}
	var packets []packet
	var questions []string
	for range count {
		p := choose(s, r)
		packets, questions = append(packets, p), append(questions, p.command())
	}
	for i, answer := range ask(t, pod, questions) {
		p := packets[i]
		kernels, local := parse(answer)
		if local || p.In != "lo" && isOdd(s, p.From[0]) { // such a station is refused, whatever it sends
			continue
		}
		table := fib.Of(s, p.Source)
		way, _ := table.Lookup(netip.PrefixFrom(p.to, p.to.BitLen()))
		ours := "none"
		var equal []string // of one metric the kernel takes that whose neighbour answers (IPv6)
		for _, route := range way.Routes {
			if route.Metric == way.Routes[0].Metric || route.TOS != 0 {
				equal = append(equal, text(route, names))
			}
		}
		if p.In != "lo" && len(way.Routes) > 0 && types[way.Routes[0].Type] != "" {
			continue // nor does the kernel say where it delivers a station's packet
		}
		if len(equal) > 0 {
			ours, routed = equal[0], routed+1
		}
		switch {
		case kernels == ours || kernels == "unreachable" && ours == "none" && p.In != "lo":
		case ip.Of(p.to) == ip.V6 && slices.Contains(equal, kernels):
		case slices.ContainsFunc(table.Rest, func(r netstate.Rule) bool { return r.Other && decides(s, r, p, kernels, names) }):
			other++
		default:
			t.Errorf("ip %s\nours:   %s\nkernel: %s\n%s", p.command(), ours, kernels, answer)
		}
	}
	judgeSource(t, pod, s)
	judgeSources(t, pod, s, packets)
	return routed, other
}

// failed is what ip(8) says of a line of a batch.
var failed = regexp.MustCompile(`(?m)^(.*)\nCommand failed .*:(\d+)$`)

// ask returns the kernel's answers, or why it refuses, by one ip(8): a process for each question takes minutes on an
// emulated machine.
func ask(t testing.TB, pod *nstest.Namespace, questions []string) []string {
	t.Helper()
	dir := t.TempDir()
	batch, refusals := filepath.Join(dir, "questions"), filepath.Join(dir, "refusals")
	if err := os.WriteFile(batch, []byte(strings.Join(questions, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	routes := pod.Exec("sh", "-c", fmt.Sprintf("ip -j -d -force -batch %s 2>%s || true", batch, refusals))
	said, err := os.ReadFile(refusals)
	if err != nil {
		t.Fatal(err)
	}
	answers := make([]string, len(questions))
	for _, f := range failed.FindAllStringSubmatch(string(said), -1) {
		line, _ := strconv.Atoi(f[2])
		answers[line-1] = f[1]
	}
	next := strings.Fields(routes)
	for i := range answers {
		if answers[i] == "" && len(next) > 0 {
			answers[i], next = next[0], next[1:]
		}
	}
	if len(next) > 0 || slices.Contains(answers, "") {
		t.Fatalf("%d questions:\n%s\n%s", len(questions), routes, said)
	}
	return answers
}

// decides reports whether the kernel's answer is that of the rule, which asks for what a Snapshot cannot hold, if the
// packet has it.
func decides(s netstate.Snapshot, rule netstate.Rule, p packet, kernels string, names map[int]string) bool {
	if rule.Table == 0 { // it does not look up a table
		return kernels == "blackhole" || kernels == "unreachable" || kernels == "prohibit"
	}
	s.Rules = slices.Clone(s.Rules)
	s.Rules[slices.Index(s.Rules, rule)] = netstate.Rule{Priority: rule.Priority, Table: rule.Table, IPv6: rule.IPv6, Suppress: rule.Suppress}
	way, _ := fib.Of(s, p.Source).Lookup(netip.PrefixFrom(p.to, p.to.BitLen()))
	return slices.ContainsFunc(way.Routes, func(r netstate.Route) bool {
		return text(r, names) == kernels || p.In != "lo" && types[r.Type] != "" // which the kernel does not show
	})
}

// isOdd reports whether a route that delivers packets here, or to a group, may lead to the station.
func isOdd(s netstate.Snapshot, station netip.Addr) bool {
	return slices.ContainsFunc(s.Routes, func(r netstate.Route) bool {
		return r.Destination.Contains(station) && r.Type != netstate.RouteUnicast && r.Type <= netstate.RouteMulticast
	})
}

// judgeSource compares the first address of a lease with the source of the namespace's own packets to the world.
func judgeSource(t testing.TB, pod *nstest.Namespace, s netstate.Snapshot) {
	t.Helper()
	for _, v := range ip.Both {
		answer := pod.Exec("sh", "-c", fmt.Sprintf("ip -j route get %v 2>&1 || true", far(v)))
		var list []struct {
			Dev     string
			Prefsrc netip.Addr
		}
		if json.Unmarshal([]byte(answer), &list) != nil || len(list) != 1 {
			continue // refused
		}
		nic, _ := s.Named(list[0].Dev)
		if hasHome(s, nic) {
			continue
		}
		addresses := lease.Of(s, nic).AddressesOf(v)
		isSource := func(p netip.Prefix) bool { return p.Addr() == list[0].Prefsrc }
		if slices.ContainsFunc(addresses, isSource) && !isSource(addresses[0]) {
			t.Errorf("a guest of %s gets %v first, and the namespace sends from another one:\n%s", nic.Name, addresses, answer)
		}
	}
}

// judgeSources compares the sources of the namespace's own packets behind a routed guest with those of packets now.
func judgeSources(t testing.TB, pod *nstest.Namespace, s netstate.Snapshot, packets []packet) {
	t.Helper()
	var questions []string
	for _, p := range packets {
		questions = append(questions, fmt.Sprintf("route get %v", p.to))
	}
	for i, answer := range ask(t, pod, questions) {
		to := packets[i].to
		var list []struct {
			Dev     string
			Prefsrc netip.Addr
		}
		if json.Unmarshal([]byte(answer), &list) != nil || len(list) != 1 || to.IsLinkLocalUnicast() {
			continue // refused
		}
		link, _ := s.Named(list[0].Dev)
		if hasHome(s, link) {
			continue
		}
		nic, hop := lease.Of(s, link), ip.Pick(ip.Of(to), lease.RoutedIPv4, lease.RoutedIPv6)
		isSource := func(p netip.Prefix) bool { return p.Addr() == list[0].Prefsrc }
		table := fib.Of(s, fib.Source{IP: ip.Of(to), From: []netip.Addr{hop}, VRF: nic.VRF()})
		way, _ := table.Lookup(netip.PrefixFrom(to, to.BitLen()))
		isOther := len(way.Routes) == 0 || len(way.Routes[0].Hops) > 0 || way.Routes[0].Type != netstate.RouteUnicast
		if len(table.Rest) > 0 || isOther || !slices.ContainsFunc(nic.AddressesOf(ip.Of(to)), isSource) {
			continue // the rules distinguish, a route has more than one source or is no guest's, or the address is another link's
		}
		choices := nic.Sources(hop)
		at := slices.IndexFunc(choices, func(c fib.Choice) bool { return !c.To.IsValid() || c.To.Contains(to) })
		if choices[at].Address != list[0].Prefsrc {
			t.Errorf("%s sends to %v from another address than %v:\n%s", link.Name, to, choices, answer)
		}
	}
}

// hasHome reports whether the link has a home address of mobile IPv6, which kernels that are built for it prefer (RFC
// 6724 section 5, rule 4).
func hasHome(s netstate.Snapshot, link netstate.Link) bool {
	return slices.ContainsFunc(s.Addresses, func(a netstate.Address) bool {
		return a.Link == link.Index && a.Prefix.Addr().Is6() && a.Flags&unix.IFA_F_HOMEADDRESS != 0
	})
}

func far(v ip.Version) netip.Addr {
	return ip.Pick(v, netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8:ffff::7"))
}

// choose makes a packet to somewhere near the namespace's routes.
func choose(s netstate.Snapshot, r *rand.Rand) (p packet) {
	p.IP, p.In = ip.Both[r.IntN(2)], "lo"
	var near []netip.Prefix
	for _, route := range s.Routes {
		near = append(near, route.Destination)
	}
	for _, rule := range s.Rules {
		near = append(near, rule.Destination)
	}
	near = slices.DeleteFunc(near, func(n netip.Prefix) bool { return !n.IsValid() || ip.Of(n.Addr()) != p.IP })
	p.to = far(p.IP)
	if len(near) > 0 && r.IntN(8) > 0 {
		p.to = within(near[r.IntN(len(near))], r)
	}
	if p.to.IsUnspecified() || p.to.IsMulticast() || p.to.IsLinkLocalUnicast() && p.IP == ip.V6 || p.to.IsLoopback() || p.to.As16()[12] == 0 && p.IP == ip.V4 {
		p.to = far(p.IP)
	}
	var own []netip.Addr
	for _, a := range s.Addresses {
		if addr := a.Prefix.Addr(); ip.Of(addr) == p.IP && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			own = append(own, addr)
		}
	}
	if len(own) > 0 && r.IntN(2) == 0 {
		p.From = []netip.Addr{own[r.IntN(len(own))]}
	}
	var links []netstate.Link
	for _, l := range s.Links {
		if l.Up && !l.Loopback && !l.NoIPv6 {
			links = append(links, l)
		}
	}
	if len(links) > 0 && r.IntN(4) == 0 { // a packet that comes in from a station
		l := links[r.IntN(len(links))]
		p.In, p.From = l.Name, []netip.Addr{ip.Pick(p.IP, netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:eeee::9"))}
		master, _ := s.Link(l.Master)
		p.VRF = master.VRF + l.VRF
	}
	if r.IntN(3) == 0 {
		p.TOS = 0x10
	}
	if r.IntN(3) == 0 {
		p.Mark = uint32(r.IntN(0x20))
	}
	return p
}

// within is an address of the network.
func within(n netip.Prefix, r *rand.Rand) netip.Addr {
	a := n.Masked().Addr().AsSlice()
	for bit := n.Bits(); bit < 8*len(a); bit++ {
		if r.IntN(2) == 0 && (bit < 24 || bit >= 8*len(a)-4) {
			a[bit/8] |= 1 << (7 - bit%8)
		}
	}
	addr, _ := netip.AddrFromSlice(a)
	return addr
}

var refusals = map[string]string{
	"Invalid argument": "blackhole", "No route to host": "unreachable", "Permission denied": "prohibit", "Network is unreachable": "none",
}

var types = map[uint8]string{netstate.RouteUnicast: "", netstate.RouteLocal: "local ", 3: "broadcast ", 4: "anycast ", netstate.RouteMulticast: "multicast "}

var refusing = map[uint8]string{6: "blackhole", 7: "unreachable", 8: "prohibit"}

// parse is the kernel's answer in the words of text, and whether it is of the table local, which no Snapshot has. With
// IPv4 the kernel may call it main.
func parse(answer string) (text string, local bool) {
	if _, why, is := strings.Cut(answer, "answers: "); is {
		return refusals[why], false
	}
	var list []struct {
		Type, Dst, Gateway, Dev, Table string
		Via                            struct{ Host string }
		Metric                         uint32
		Nexthops                       []struct {
			Gateway, Dev string
			Via          struct{ Host string }
		}
	}
	if err := json.Unmarshal([]byte(answer), &list); err != nil || len(list) != 1 {
		return answer, false
	}
	r := list[0]
	text = fmt.Sprintf("%s%s metric %d", strings.TrimPrefix(r.Type+" ", "unicast "), r.Dst, r.Metric)
	if r.Dev != "" {
		text += fmt.Sprintf(" via %s%s dev %s", r.Gateway, r.Via.Host, r.Dev)
	}
	var hops []string
	for _, h := range r.Nexthops {
		hops = append(hops, fmt.Sprintf(" via %s%s dev %s", h.Gateway, h.Via.Host, h.Dev))
	}
	slices.Sort(hops) // an IPv6 route begins with the one that the packet takes
	text += strings.Join(hops, "")
	return text + " table " + r.Table, r.Table == "local" || r.Table == "main" && (r.Type == "local" || r.Type == "broadcast")
}

// text is the route in the same words.
func text(r netstate.Route, names map[int]string) string {
	if kind, is := refusing[r.Type]; is {
		return kind
	}
	to := strings.TrimSuffix(r.Destination.String(), fmt.Sprintf("/%d", r.Destination.Addr().BitLen()))
	if r.Destination.Bits() == 0 {
		to = "default"
	}
	hop := func(gateway netip.Addr, link int) string {
		via := ""
		if gateway.IsValid() {
			via = gateway.String()
		}
		return fmt.Sprintf(" via %s dev %s", via, names[link])
	}
	text := fmt.Sprintf("%s%s metric %d", types[r.Type], to, r.Metric)
	if r.Link != 0 {
		text += hop(r.Gateway, r.Link)
	}
	var hops []string
	for _, h := range r.Hops {
		hops = append(hops, hop(h.Gateway, h.Link))
	}
	slices.Sort(hops)
	text += strings.Join(hops, "")
	table := map[uint32]string{netstate.TableMain: "main", netstate.TableDefault: "default"}[r.Table]
	return text + " table " + cmp.Or(table, fmt.Sprint(r.Table))
}
