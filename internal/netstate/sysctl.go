package netstate

import (
	"slices"
	"strings"
)

// Sysctls that a wiring changes, below /proc/sys, with slashes (Linux, Documentation/networking/ip-sysctl.rst).
const (
	// Forwarding6 is IPv6 forwarding of the whole namespace.
	Forwarding6 = "net/ipv6/conf/all/forwarding"
	// NoIPv6 decides whether a new link has IPv6.
	NoIPv6 = "net/ipv6/conf/default/disable_ipv6"
	// PortStart is the first port that a process without capabilities may bind.
	PortStart = "net/ipv4/ip_unprivileged_port_start"
	// PortRange are the ports that the kernel gives to sockets that ask for any.
	PortRange = "net/ipv4/ip_local_port_range"
	// ReservedPorts are ports of PortRange that the kernel gives to no socket.
	ReservedPorts = "net/ipv4/ip_local_reserved_ports"
	// ProxyARP has all links answer ARP requests for what the namespace reaches by others, as Link.ProxyARP has one.
	ProxyARP = "net/ipv4/conf/all/proxy_arp"
	// IgnoreARP has all links leave ARP requests unanswered. A link has the larger one of this value and its own.
	IgnoreARP = "net/ipv4/conf/all/arp_ignore"
	// PingGroups are the groups whose processes may open ping sockets.
	PingGroups = "net/ipv4/ping_group_range"
	// CountFlows has the kernel count what each connection carries.
	CountFlows = "net/netfilter/nf_conntrack_acct"
	// ReportFlows has the kernel report when connections begin and end. With 2, the default since Linux 5.19, it does not
	// report the end of those that have begun while nobody listened.
	ReportFlows = "net/netfilter/nf_conntrack_events"
	// TimeFlows has the kernel keep when each connection has begun.
	TimeFlows = "net/netfilter/nf_conntrack_timestamp"
)

// OfFlows are the sysctls of a log of connections, which wants 1 of each. The kernel has them with connection tracking.
func OfFlows() []string { return []string{CountFlows, ReportFlows, TimeFlows} }

var bridgeCalls = []string{
	"net/bridge/bridge-nf-call-arptables", "net/bridge/bridge-nf-call-ip6tables", "net/bridge/bridge-nf-call-iptables",
}

// BridgeCalls decide whether packets that a bridge forwards pass the namespace's iptables too.
func BridgeCalls() []string { return slices.Clone(bridgeCalls) }

// DefaultBridgeCall is the value of BridgeCalls in a namespace in which the kernel has just created them.
const DefaultBridgeCall = "1"

// ForceForwarding lets one link forward IPv6 while the others of the namespace do not, from Linux 6.17 on.
func ForceForwarding(link string) string { return "net/ipv6/conf/" + link + "/force_forwarding" }

// AcceptRA decides whether a link takes routes from router advertisements.
func AcceptRA(link string) string { return "net/ipv6/conf/" + link + "/accept_ra" }

// DisableIPv6 takes IPv6 from one link.
func DisableIPv6(link string) string { return "net/ipv6/conf/" + link + "/disable_ipv6" }

// OfRouter are the sysctls of the guest's tap where it is the guest's router. They go away with the link. A link that
// forwards calls itself a router when it answers a neighbour solicitation, and a guest takes no other link for one.
func OfRouter(n Names) []string {
	return append([]string{ForceForwarding(n.Tap), Forwards6(n.Tap), ProxyDelay(n.Tap)}, SourceRoutes6(n.Tap)...)
}

// SourceRoutes6 decide whether a link takes packets that say by which addresses they go on: by segment routing (RFC
// 8754) or a source route of RPL (RFC 6554). The kernel has no other routing headers. A new link has the values of
// "default".
func SourceRoutes6(link string) []string {
	return []string{"net/ipv6/conf/" + link + "/seg6_enabled", "net/ipv6/conf/" + link + "/rpl_seg_enabled"}
}

// OfNewLinks is the sysctl whose value a link's one has at first.
func OfNewLinks(path string) string {
	parts := strings.Split(path, "/")
	parts[3] = "default"
	return strings.Join(parts, "/")
}

// Forwards6 says that a link is a router's.
func Forwards6(link string) string { return "net/ipv6/conf/" + link + "/forwarding" }

// ProxyDelay is the time for which a link's ARP answers for others wait at most, in hundredths of a second. A namespace
// of an ordinary user has no such sysctl.
func ProxyDelay(link string) string { return "net/ipv4/neigh/" + link + "/proxy_delay" }

// Shared are the sysctls that the whole namespace shares, so that the wirings of several NICs meet in them.
func Shared() []string {
	return slices.Concat([]string{Forwarding6, NoIPv6, PortStart, PingGroups, ReservedPorts}, OfFlows(), bridgeCalls)
}

// SysctlOrder are the sysctls of the namespace and of the NIC in the order in which they are written. IPv6
// forwarding comes late: switching it on deletes the routes that came by router advertisement, unless
// accept_ra is 2 already.
func SysctlOrder(nic string) []string {
	return slices.Concat([]string{PortStart, PingGroups, ReservedPorts}, OfFlows(), []string{NoIPv6, AcceptRA(nic), Forwarding6, ForceForwarding(nic)}, bridgeCalls)
}
