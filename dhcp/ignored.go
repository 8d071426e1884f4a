package dhcp

// Reason is why a frame was ignored: a name for programs, which does not change. If several fit, it is the first.
//
//	other-mac               the frame's source is no MAC of the record
//	other-hardware-address  the frame names another DHCPv4 client or ARP sender
//	other-protocol          another EtherType, IP protocol, port or ICMPv6 type, or an ARP reply
//	other-message           a DHCP message that no client sends: a server's, or an unknown type
//	other-server            the message names another DHCP server
//	other-address           a DHCPv4 DECLINE or RELEASE of an address that is not the guest's
//	other-target            a request for the MAC of an address that the record does not list
//	no-ipv4                 the record has no IPv4 address
//	no-ipv6                 the record has no IPv6 address
//	bootp                   a BOOTP message, which has no DHCP message type
//	relayed                 a message from a DHCP relay, or to one
//	unicast                 a DHCPv6 message that is not sent to a multicast address
//	fragment                a part of an IPv4 packet
//	bad-source              an IPv6 source that cannot send this, such as a multicast address
//	bad-checksum            a wrong checksum of IPv4, UDP or ICMPv6
//	bad-hop-limit           a solicitation whose hop limit is not 255
//	incomplete              a field or an option is missing that the message must have
//	malformed               lengths, fields or options that the protocol forbids
type Reason string

const (
	otherMAC             Reason = "other-mac"
	otherHardwareAddress Reason = "other-hardware-address"
	otherProtocol        Reason = "other-protocol"
	otherMessage         Reason = "other-message"
	otherServer          Reason = "other-server"
	otherAddress         Reason = "other-address"
	otherTarget          Reason = "other-target"
	noIPv4               Reason = "no-ipv4"
	noIPv6               Reason = "no-ipv6"
	bootp                Reason = "bootp"
	relayed              Reason = "relayed"
	unicast              Reason = "unicast"
	fragment             Reason = "fragment"
	badSource            Reason = "bad-source"
	badChecksum          Reason = "bad-checksum"
	badHopLimit          Reason = "bad-hop-limit"
	incomplete           Reason = "incomplete"
	malformed            Reason = "malformed"
)

// reasons has each reason once. The index is that of the counter.
var reasons = [...]Reason{
	otherMAC, otherHardwareAddress, otherProtocol, otherMessage, otherServer, otherAddress, otherTarget, noIPv4, noIPv6,
	bootp, relayed, unicast, fragment, badSource, badChecksum, badHopLimit, incomplete, malformed,
}
