package firewall

import (
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/syntax"
)

// Reason is why a rule drops a packet. [Reasons] lists all.
type Reason string

// The reasons. Packets of the guest:
const (
	MACSpoof            Reason = "mac-spoof"
	ARPSpoof            Reason = "arp-spoof"
	IPSpoof             Reason = "ip-spoof"
	NeighbourSpoof      Reason = "neighbour-spoof"
	VLANTag             Reason = "vlan-tag"
	EtherTypeOther      Reason = "ethertype"
	BridgeControl       Reason = "bridge-control"
	Malformed           Reason = "malformed"
	HiddenFragment      Reason = "fragment"
	ExtensionHeader     Reason = "extension-header"
	DHCPServer          Reason = "dhcp-server"
	DHCPRequest         Reason = "dhcp-request"
	RouterSolicitation  Reason = "router-solicitation"
	NoFamily            Reason = "no-family"
	RouterAdvertisement Reason = "router-advertisement"
	MulticastRouter     Reason = "multicast-router"
	ICMPRedirect        Reason = "icmp-redirect"
	ICMPType            Reason = "icmp-type"
	TooLong             Reason = "too-long"
	LoopbackAddress     Reason = "loopback"
	NoIPv6              Reason = "no-ipv6"
	NamespaceService    Reason = "namespace-service"
	NoEgress            Reason = "egress"
	OtherLink           Reason = "other-link"
)

// Packets in both directions, or of others:
const (
	NoConnection    Reason = "no-connection"
	NoPorts         Reason = "no-ports"
	ConnectionLimit Reason = "connection-limit"
	NeighbourLimit  Reason = "neighbour-limit"
	RateLimit       Reason = "rate-limit"
	NotForwarded    Reason = "not-forwarded"
	NamespaceOutput Reason = "namespace-output"
	NetworkDHCP     Reason = "network-dhcp"
	NetworkRouter   Reason = "network-router"
	NetworkFrame    Reason = "network-frame"
)

// Described is a reason, and what it means in one line.
type Described struct {
	Reason  Reason
	Meaning string
}

// Reasons are all reasons.
var Reasons = []Described{
	{MACSpoof, "the guest sent with a source MAC that is not the record's: start the VM with the record's MAC (QEMU: mac=), or allow the other MAC by guard.macs"},
	{ARPSpoof, "the guest sent ARP or RARP in which the sender's MAC or address is not the guest's, or is missing"},
	{IPSpoof, "the guest sent IPv4 or IPv6 with a source address that is not the guest's"},
	{NeighbourSpoof, "the guest sent a neighbour or router solicitation, or a neighbour advertisement, for an address or with an option that is not the guest's, or with more options than the filter looks through"},
	{VLANTag, "the guest sent with a VLAN tag (802.1Q, 802.1ad) that guard.vlans does not allow (0: a priority tag), or with two"},
	{EtherTypeOther, "the guest sent a frame that is neither IPv4, IPv6, ARP nor RARP, nor of guard.etherTypes"},
	{BridgeControl, "the guest sent to an address of bridges (01:80:c2:00:xx:xx: spanning tree, LLDP, LACP)"},
	{Malformed, "the guest sent headers that cannot be read, the reserved protocol 255, or ARP that is neither a request nor a reply for IPv4, or RARP that is no request"},
	{HiddenFragment, "the guest sent an IPv6 fragment that hides the packet's headers from a filter"},
	{ExtensionHeader, "the guest sent neighbour discovery after an IPv6 extension header, or in fragments (RFC 6980); with egress set, a routing header"},
	{DHCPServer, "the guest sent from the port of a DHCP server, or to the port of a DHCP client; a relay's request to one server passes, by DHCPv4 if its giaddr is the guest's"},
	{DHCPRequest, "the guest sent a DHCP request that the responder does not take (to another server, fragments, IP options, extension headers), and no other server may answer"},
	{RouterSolicitation, "the guest sent a router solicitation that the responder does not take, and no router may answer"},
	{NoFamily, "the guest asked for a lease or a router of a family of which it has no address, or took a link-local address in their place"},
	{RouterAdvertisement, "the guest sent a router advertisement"},
	{MulticastRouter, "the guest sent IGMP or MLD that only multicast routers send, such as a query"},
	{ICMPRedirect, "the guest sent an ICMP redirect"},
	{ICMPType, "the guest sent an ICMP or ICMPv6 message of a type that hosts do not send"},
	{TooLong, "a frame from the guest or to it that is longer than mtu, or than the NIC's MTU, except whole packets of TCP and UDP"},
	{LoopbackAddress, "the guest sent to or from a loopback address, or an IPv4-mapped IPv6 address"},
	{NoIPv6, "the guest of masquerade or routed sent IPv6, and the pod has no IPv6 address"},
	{NamespaceService, "the guest sent to a service of the namespace that guard.open does not open"},
	{NoEgress, "the guest opened a connection that egress or egressWithin refuses, or diverts to a target that cannot take it; it got an answer"},
	{OtherLink, "the guest of masquerade or routed opened a connection that would leave by a link other than its NIC, where no answer could come back; it got an answer"},
	{NoConnection, "a packet of masquerade or routed that belongs to no connection, or an error of the guest about a connection of the namespace"},
	{NoPorts, "the guest sent a protocol without ports (a tunnel, for example) to where the answer could be the namespace's"},
	{ConnectionLimit, "a new connection of the guest or to the guest, above maxConnections, or more new TCP connections a minute"},
	{NeighbourLimit, "the guest used too many next hops, or too many sources, in a minute"},
	{RateLimit, "a packet from the guest above one of limits, or one to it that the queue of its limit has no room for"},
	{NotForwarded, "a packet from the network for a port that is not forwarded to the guest, or for another network behind the NIC"},
	{NamespaceOutput, "the namespace sent by the NIC or another link of the wiring, which are the guest's, as a DHCP server to the guest, or beside `egress` with the guest's address, or to the guest with another host's"},
	{NetworkDHCP, "a DHCP server of the network sent to the guest, whose server is the responder"},
	{NetworkRouter, "a router of the network sent a router advertisement or a redirect to the guest, whose router the responder announces"},
	{NetworkFrame, "the network sent the guest a frame that is neither IPv4, IPv6 nor ARP, nor of guard.etherTypes and guard.vlans (0: priority tags), IP with headers that cannot be read, or the guest's own MAC and address in ARP or duplicate address detection"},
}

// Expected reports whether a healthy wiring drops packets for the reason: those of the namespace and of the network
// that are not for the guest, and what a guest sends until it knows its network. Nothing needs to be done then.
func (r Reason) Expected() bool {
	switch r {
	case BridgeControl, NoIPv6, NoFamily, NamespaceOutput, NetworkDHCP, NetworkRouter:
		return true
	}
	return false
}

// Meaning is the reason's in a line. Empty: there is no such reason.
func (r Reason) Meaning() string {
	for _, row := range Reasons {
		if row.Reason == r {
			return row.Meaning
		}
	}
	return ""
}

// LogGroup is the nflog group to which the tables report packets that they drop ("gw").
const LogGroup = 'g'<<8 | 'w'

// Of each reason at most so many packets are reported. The counters count all packets.
const (
	logPerSecond = 20
	logBurst     = 20
)

// dropChain begins the name of a chain that drops for a reason, upChain that of a chain that leaves packets to the
// namespace.
const dropChain, upChain = "drop-", "up-"

// Allowed is the chain that counts the connections which a policy lets the guest open.
const Allowed = "allowed"

// Diverted is the chain that counts the connections which are led to a port of the namespace.
const Diverted = "diverted"

// LogPrefix returns the text that the report of a packet has: it names the NIC and the reason.
func LogPrefix(nic string, r Reason) string { return "guestwire " + nic + " " + string(r) }

// ParseLogPrefix returns the NIC and the reason of a [LogPrefix]; ok is false for another program's text.
func ParseLogPrefix(prefix string) (nic string, r Reason, ok bool) {
	words := strings.Fields(prefix)
	if len(words) != 3 || words[0] != "guestwire" || !isReason(words[2]) {
		return "", "", false
	}
	return words[1], Reason(words[2]), true
}

// ReasonOf returns the reason for which the chain keeps packets from the guest, or the guest's packets from the
// network. Ok is false for other chains, also if the name has a word that is none of Reasons: another program can add
// any number of such chains to the namespace's nftables.
func ReasonOf(chain string) (r Reason, ok bool) {
	name, ok := strings.CutPrefix(chain, dropChain)
	if !ok {
		name, ok = strings.CutPrefix(chain, upChain)
	}
	return Reason(name), ok && slices.ContainsFunc(Reasons, func(d Described) bool { return d.Reason == Reason(name) })
}

// isReason reports whether the name can be a reason, also one of another version of guestwire. A program with the right
// to change the namespace's nftables can use any octets in names.
func isReason(name string) bool { return syntax.IsWord(name, "-", 32) }
