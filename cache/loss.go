package cache

import "fmt"

// Loss is one thing that the namespace has, and that the guest does not get.
type Loss struct {
	// Kind is what the guest does not get:
	//
	//	family         IPv4 or IPv6 as a whole
	//	route          a route through the NIC
	//	next-hop       next hops of a route that has several
	//	gateway        a next hop that did not answer Setup, until a later Setup finds it
	//	policy-rule    policy rules, or the routes of a table that they lead to
	//	address        an address of the namespace
	//	other-link     what the namespace reaches by another link
	//	server         a resolver or a time server that the guest cannot reach
	//	option         a DHCP option that some clients cannot receive
	//	mtu            a part of the NIC's MTU
	//	frames         frames for the guest that the NIC does not receive
	Kind string `json:"kind"`

	// What is lost, such as 10.96.0.0/12, 10.96.0.53 or net1.
	What string `json:"what"`

	// Why is the reason, a phrase.
	Why string `json:"why"`

	// Keeps is a binding with which the guest gets it on this NIC. Empty: none is known.
	Keeps Kind `json:"keeps,omitempty"`
}

// String is the loss as a phrase, such as
//
//	next-hop 10.96.0.0/12: the guest gets one of 2, 10.244.1.2; routed keeps it
func (l Loss) String() string {
	text := fmt.Sprintf("%s %s: %s", l.Kind, l.What, l.Why)
	if l.Keeps != "" {
		text += fmt.Sprintf("; %s keeps it", l.Keeps)
	}
	return text
}
