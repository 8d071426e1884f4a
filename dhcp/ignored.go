package dhcp

// Reason is why the responder ignored a frame. The text is a name for machines, which does not change.
type Reason string

// The reasons. A frame that is ignored has exactly one of them, the first one that the responder finds.
const (
	OtherMAC             Reason = "other-mac"              // the frame's source is not the MAC of the record
	OtherHardwareAddress Reason = "other-hardware-address" // the DHCPv4 client or the ARP sender inside the guest's frame is another station
	OtherProtocol        Reason = "other-protocol"         // nothing that the responder answers: EtherType, IP protocol, port, ICMPv6 type, an ARP reply
	OtherMessage         Reason = "other-message"          // a DHCP message that no client sends: a server's, or an unknown type
	OtherServer          Reason = "other-server"           // the message names another DHCP server
	OtherAddress         Reason = "other-address"          // a DHCPv4 DECLINE or RELEASE of an address that the guest does not have
	OtherTarget          Reason = "other-target"           // an ARP request or a neighbour solicitation for an address that the record does not list
	NoIPv4               Reason = "no-ipv4"                // the record has no IPv4 address
	NoIPv6               Reason = "no-ipv6"                // the record has no IPv6 address
	BOOTP                Reason = "bootp"                  // a BOOTP message, which has no DHCP message type
	Relayed              Reason = "relayed"                // from a DHCP relay, or to one
	Unicast              Reason = "unicast"                // a DHCPv6 message that is not sent to a multicast address
	Fragment             Reason = "fragment"               // a part of an IPv4 packet
	BadSource            Reason = "bad-source"             // an IPv6 source from which the message cannot come, such as a multicast address
	BadChecksum          Reason = "bad-checksum"           // of IPv4, UDP or ICMPv6
	BadHopLimit          Reason = "bad-hop-limit"          // a solicitation whose hop limit is not 255
	Incomplete           Reason = "incomplete"             // a field or an option is missing that the message must have
	Malformed            Reason = "malformed"              // lengths, fields or options that the protocol forbids
)

// reasons has each reason once. The index is that of the counter.
var reasons = [...]Reason{
	OtherMAC, OtherHardwareAddress, OtherProtocol, OtherMessage, OtherServer, OtherAddress, OtherTarget, NoIPv4, NoIPv6,
	BOOTP, Relayed, Unicast, Fragment, BadSource, BadChecksum, BadHopLimit, Incomplete, Malformed,
}
