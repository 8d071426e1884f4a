package firewall

import (
	"fmt"
	"net/netip"
)

// Verdict is what is done with a packet that matches, one of the types below.
type Verdict interface {
	fmt.Stringer
	verdict()
}

type (
	// Accept ends the chain and those that led to it.
	Accept struct{}
	// Drop ends the packet.
	Drop struct{}
	// Goto goes on in another chain and does not come back.
	Goto struct{ Chain string }
	// Jump goes on in another chain and comes back at its end.
	Jump struct{ Chain string }
	// DNAT sends a connection to another address, and to another port unless that is 0.
	DNAT struct {
		Address netip.Addr
		Port    uint16
	}
	// SNAT gives a connection another source address.
	SNAT struct{ Address netip.Addr }
	// Masquerade gives a connection the source address of the link that it leaves by.
	Masquerade struct{}
	// Fwd sends a frame out by another link, whose index the kernel wants and the text does not tell.
	Fwd struct {
		Device string
		Index  int
	}
	// ClampMSS lowers a segment's MSS to what the route takes, and goes on.
	ClampMSS struct{}
)

func (Accept) verdict()     {}
func (Drop) verdict()       {}
func (Goto) verdict()       {}
func (Jump) verdict()       {}
func (DNAT) verdict()       {}
func (SNAT) verdict()       {}
func (Masquerade) verdict() {}
func (Fwd) verdict()        {}
func (ClampMSS) verdict()   {}

func (Accept) String() string     { return "accept" }
func (Drop) String() string       { return "drop" }
func (v Goto) String() string     { return "goto " + v.Chain }
func (v Jump) String() string     { return "jump " + v.Chain }
func (Masquerade) String() string { return "masquerade" }
func (ClampMSS) String() string   { return "tcp option maxseg size set rt mtu" }

func (v Fwd) String() string { return fmt.Sprintf("fwd to %q", v.Device) }

func (v DNAT) String() string {
	to := v.Address.String()
	if v.Port != 0 {
		to = netip.AddrPortFrom(v.Address, v.Port).String()
	}
	return "dnat " + version(v.Address.Is4()) + " to " + to
}

func (v SNAT) String() string {
	return "snat " + version(v.Address.Is4()) + " to " + v.Address.String()
}
