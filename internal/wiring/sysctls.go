package wiring

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Under masquerade and routed the guest depends on sysctls of the namespace that the namespace's own packets may do
// without. Setup leaves these as they are: they are the administrator's, and others of the namespace depend on them.
// With a value that no guest can work with, it refuses the binding. TestSysctls lists all sysctls.

// hinders are the sysctls that some bindings are refused for. A Snapshot has them, and a journal does not.
func hinders() []string {
	paths := []string{netstate.IgnoreARP}
	for _, n := range needs {
		paths = append(paths, n.path)
	}
	return paths
}

// need is a sysctl that is of use with any value but 0.
type need struct {
	path      string
	version   int    // of IP; 0: both
	otherwise string // the kernel's default, or about that
	lost      string // with 0
}

// needs are read at each Check. Other timeouts are of connections that have ended.
var needs = slices.Concat(
	[]need{
		{"net/ipv4/ipfrag_high_thresh", 4, "4194304", "fragments of the guest"},
		{netfilter + "frag6_high_thresh", 6, "4194304", "fragments of the guest"},
		{netfilter + "icmp_timeout", 4, "30", "answers to the guest's pings"},
		{netfilter + "icmpv6_timeout", 6, "30", "answers to the guest's pings"},
	},
	timeouts("30", "answers to the guest's datagrams", "udp_timeout", "udp_timeout_stream"),
	timeouts("300", "TCP connections of the guest", "tcp_timeout_syn_sent", "tcp_timeout_syn_recv", "tcp_timeout_fin_wait",
		"tcp_timeout_close_wait", "tcp_timeout_last_ack", "tcp_timeout_max_retrans", "tcp_timeout_unacknowledged"),
	timeouts("432000", "TCP connections of the guest", "tcp_timeout_established"),
	timeouts("3", "SCTP associations of the guest", "sctp_timeout_cookie_wait", "sctp_timeout_cookie_echoed"),
	timeouts("210", "SCTP associations of the guest", "sctp_timeout_established"),
	timeouts("180", "answers to the guest's GRE packets", "gre_timeout", "gre_timeout_stream"),
	timeouts("600", "answers to the guest's packets of other protocols", "generic_timeout"),
)

// netfilter begins the sysctls of connection tracking, which a kernel has with nf_conntrack.
const netfilter = "net/netfilter/nf_conntrack_"

func timeouts(otherwise, lost string, names ...string) (list []need) {
	for _, name := range names {
		list = append(list, need{netfilter + name, 0, otherwise, lost})
	}
	return list
}

// checkSysctls refuses a router whose guest could not work with the namespace's sysctls.
func (p *Plan) checkSysctls() error {
	err := p.Hindered(p.found)
	p.found.Sysctls = maps.Clone(p.found.Sysctls)
	for _, path := range hinders() {
		delete(p.found.Sysctls, path)
	}
	return err
}

// Hindered is the error of a Setup that finds Hindrances; nil: there are none.
func (p *Plan) Hindered(now netstate.Snapshot) error {
	if reasons := p.Hindrances(now); len(reasons) > 0 {
		return p.refuse(compare.Join(reasons))
	}
	return nil
}

// Hindrances are the sysctls with values, maybe since Setup, with which the guest cannot work. Setup leaves them.
func (p *Plan) Hindrances(now netstate.Snapshot) (list []cache.Finding) {
	add := func(path, otherwise, format string, args ...any) {
		name := strings.ReplaceAll(path, "/", ".")
		list = append(list, cache.Finding{Kind: "sysctl", What: fmt.Sprintf("%s is %s, so %s", name, now.Sysctls[path], fmt.Sprintf(format, args...)),
			Way: "set it first (sysctl -w " + infra.ShellWord(name+"="+otherwise) + ")"})
	}
	if !p.traits().Routes {
		return nil
	}
	for _, path := range hinders() {
		value, has := now.Sysctls[path]
		if !has {
			continue
		}
		if path == netstate.IgnoreARP {
			if gateway := unanswered(p.Record.IPv4, p.wanted.Addresses, value); gateway.IsValid() {
				add(path, "1", "the namespace does not answer the guest's ARP requests for %v", gateway)
			}
			continue
		}
		n := needs[slices.IndexFunc(needs, func(n need) bool { return n.path == path })]
		if value == "0" && (n.version == 0 || n.version == 4 && p.Record.IPv4 != nil || n.version == 6 && p.Record.IPv6 != nil) {
			add(path, n.otherwise, "%s are lost", n.lost)
		}
	}
	return list
}

// unanswered is the address of the gateway, if the kernel does not answer the guest's ARP requests for it while
// arp_ignore of all links has this value; zero: it answers. A link has the larger one of this value and its own, which
// is 0. With 2, the kernel answers whoever has an address of the gateway's network, with 8 nobody (arp_ignore in
// net/ipv4/arp.c).
func unanswered(v4 *cache.IPv4, wanted []netstate.Address, ignore string) (zero netip.Addr) {
	if v4 == nil {
		return zero
	}
	at := slices.IndexFunc(wanted, func(a netstate.Address) bool { return a.Link == compare.NewTap && a.Prefix.Addr() == v4.Server })
	if at < 0 {
		return zero // the kernel answers for another station
	}
	if prefix := wanted[at].Prefix; ignore == "8" || ignore == "2" && !prefix.Contains(v4.Address.Addr()) {
		return prefix.Addr()
	}
	return zero
}

// checkShown refuses a NIC if the kernel does not show by which link a route leads, as that may be the guest's.
func (s *seen) checkShown() error {
	if s.traits().Direct || s.spec.Binding.Kind() == cache.BindingMasquerade {
		return nil
	}
	for _, r := range s.found.Routes {
		if nexthopObject(r) && r.Link == 0 && len(r.Hops) == 0 && r.Type == netstate.RouteUnicast {
			return s.refuse(fmt.Sprintf("net.ipv4.nexthop_compat_mode is 0, so the kernel does not show where the route to %v leads, which uses a nexthop object: set it first (sysctl -w net.ipv4.nexthop_compat_mode=1)", r.Destination))
		}
	}
	return nil
}
