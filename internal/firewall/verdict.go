package firewall

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/internal/ip"
)

// Verdict is what a [Rule] does with a packet: one of the types below.
type Verdict interface {
	fmt.Stringer
	verdict()
}

type (
	// Accept ends the base chain: the packet goes to the next base chain of the hook.
	Accept struct{}
	// Drop discards the packet. A Reason says to people why, and has an effect only in [Table.Counted]. Without a
	// Reason nothing is lost: the packet is a copy.
	Drop struct{ Reason Reason }
	// Refuse answers the packet: that the network forbids it (ICMP), or with Reset by a TCP segment with RST, in a rule
	// that matches TCP. With a Reason, [Table.Counted] chooses the answer.
	Refuse struct {
		Reset  bool
		Reason Reason
	}
	// Up is for a netdev table: it keeps a frame from the guest and leaves it to the namespace's own stack. Port says
	// that the frame comes in by a bridge's port: the frame gets the destination of LLDP, which a bridge takes from no
	// port (br_handle_frame in net/bridge/br_input.c). A Reason is that of [Drop].
	Up struct {
		Port   bool
		Reason Reason
	}
	// Log reports the packet to the listener of an nflog group, and continues with the next rule.
	Log struct {
		Prefix string
		Group  uint16
	}
	// Continue goes on with the next rule. It is for a rule whose matches change a set.
	Continue struct{}
	// Goto continues in another chain and does not return.
	Goto struct{ Chain string }
	// Jump continues in another chain and returns at its end.
	Jump struct{ Chain string }
	// Return continues after the [Jump] that led to the chain.
	Return struct{}
	// DNAT translates a connection's destination address, and its port unless Port is 0.
	DNAT struct {
		Address netip.Addr
		Port    uint16
	}
	// SNAT translates a connection's source address, and its source port to one from First to Last; both zero: as
	// Masquerade.
	SNAT struct {
		Address     netip.Addr
		First, Last uint16
	}
	// Masquerade translates a connection's source address to that of the outgoing link, and its source port to one
	// from First to Last: the same port if it is one of these and free. First 0: any port; otherwise the rule has to
	// match a protocol with ports.
	Masquerade struct{ First, Last uint16 }
	// Fwd sends a frame out of the link Device. The kernel needs the link's Index, see [Table.Resolve]; the
	// text has only the name.
	Fwd struct {
		Device string
		Index  int
	}
	// ClampMSS lowers a TCP segment's MSS to the route's MTU, and continues with the next rule.
	ClampMSS struct{}
	// LowerMSS lowers a TCP segment's MSS to To octets, if it is higher, and continues with the next rule.
	LowerMSS struct{ To uint16 }
	// SetSource and SetDestination write an address into one packet, with its checksums, and continue with the next
	// rule. Connection tracking does not see that. The rule has to match the IP version.
	SetSource      struct{ Address netip.Addr }
	SetDestination struct{ Address netip.Addr }
	// CompleteChecksum writes the checksum that the sender has left to a device, and continues with the next rule. A
	// guest says in the virtio header where in a packet that is: after this rule nothing more is written there. The
	// kernel leaves out packets that a device cuts into segments. It is for tables of [Mangle4] and [Mangle6] alone.
	CompleteChecksum struct{}
)

func (Accept) verdict()           {}
func (Drop) verdict()             {}
func (Refuse) verdict()           {}
func (Log) verdict()              {}
func (Up) verdict()               {}
func (Continue) verdict()         {}
func (Goto) verdict()             {}
func (Jump) verdict()             {}
func (Return) verdict()           {}
func (DNAT) verdict()             {}
func (SNAT) verdict()             {}
func (Masquerade) verdict()       {}
func (Fwd) verdict()              {}
func (ClampMSS) verdict()         {}
func (LowerMSS) verdict()         {}
func (SetSource) verdict()        {}
func (SetDestination) verdict()   {}
func (CompleteChecksum) verdict() {}

func (Accept) String() string           { return "accept" }
func (Drop) String() string             { return "drop" }
func (v Up) String() string             { return pastBridge(v.Port) + "accept" }
func (Continue) String() string         { return "continue" }
func (v Goto) String() string           { return "goto " + v.Chain }
func (v Jump) String() string           { return "jump " + v.Chain }
func (Return) String() string           { return "return" }
func (ClampMSS) String() string         { return "tcp option maxseg size set rt mtu" }
func (CompleteChecksum) String() string { return "xt target CHECKSUM" }

// NearestBridge is the destination of LLDP frames (IEEE 802.1AB).
var NearestBridge = []byte{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e}

func pastBridge(port bool) string {
	if port {
		return fmt.Sprintf("@ll,0,48 set %#x ", NearestBridge)
	}
	return ""
}

func (v SetSource) String() string {
	return ipWord(ip.Of(v.Address)) + " saddr set " + v.Address.String()
}

func (v SetDestination) String() string {
	return ipWord(ip.Of(v.Address)) + " daddr set " + v.Address.String()
}

func (v Refuse) String() string {
	if v.Reset {
		return "reject with tcp reset"
	}
	return "reject with icmpx admin-prohibited"
}

func (v LowerMSS) String() string { return fmt.Sprintf("tcp option maxseg size set %d", v.To) }

func (v Masquerade) String() string {
	if v == (Masquerade{}) {
		return "masquerade"
	}
	return "masquerade to :" + ports(v.First, v.Last)
}

func (v Log) String() string { return fmt.Sprintf("log prefix %q group %d", v.Prefix, v.Group) }

func (v Fwd) String() string { return fmt.Sprintf("fwd to %q", v.Device) }

func (v DNAT) String() string {
	to := v.Address.String()
	if v.Port != 0 {
		to = netip.AddrPortFrom(v.Address, v.Port).String()
	}
	return "dnat " + ipWord(ip.Of(v.Address)) + " to " + to
}

func (v SNAT) String() string {
	to := v.Address.String()
	if v.First|v.Last != 0 {
		if v.Address.Is6() {
			to = "[" + to + "]"
		}
		to += ":" + ports(v.First, v.Last)
	}
	return "snat " + ipWord(ip.Of(v.Address)) + " to " + to
}
