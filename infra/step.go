package infra

import (
	"cmp"
	"encoding/json"
	"fmt"
)

// Step is one operation of a plan.
type Step struct {
	// Kind is what the operation does:
	//
	//	tap-add          creates a persistent tap
	//	tap-reset        undoes what a VMM that has ended left at a tap, such as offloads
	//	link-add         creates a dummy or a bridge
	//	link-set         sets properties of a link, such as name, MAC, MTU, bridge and state
	//	link-del         deletes a link
	//	group-del        deletes all links of a group
	//	bridge-set       sets properties of a bridge
	//	bridge-port-set  sets properties of a bridge's port
	//	address-add      adds an address, or changes flags and lifetimes of an IPv6 address
	//	address-del      deletes an address
	//	route-add        adds a route
	//	route-del        deletes a route
	//	neighbour-add    adds a permanent neighbour
	//	neighbour-del    deletes a neighbour
	//	fdb-add          adds a static entry to a bridge's forwarding database
	//	fdb-del          deletes an entry of a bridge's forwarding database
	//	sysctl-set       writes a value below /proc/sys/net
	//	qdisc-add        adds an ingress qdisc to a link (tc)
	//	qdisc-del        deletes an ingress qdisc with all its filters (tc)
	//	shape-set        limits what reaches the guest's tap, by its root qdisc, or deletes that (tc)
	//	filter-add       adds a filter that redirects frames to another link (tc)
	//	filter-del       deletes a filter (tc)
	//	table-set        writes a table of nftables, or the wiring's chains of iptables
	//	table-change     changes parts of a table of nftables
	//	table-del        deletes a table of nftables, or the wiring's chains of iptables
	//	connections-del  has the kernel forget connections that it tracks (conntrack)
	//	record-write     writes the record for Phase2 anew; DriftError alone has this step
	Kind string `json:"kind"`

	// Link is the link that the operation changes, by its name at that point of the plan.
	// Empty: none, or several.
	Link string `json:"link,omitempty"`

	// Command is what an administrator would type. For a table it has several lines.
	Command string `json:"command"`

	// Summary is one line in the place of a table: the program, and what the table does. Empty:
	// Command has one line.
	Summary string `json:"summary,omitempty"`
}

// String returns Summary, or Command if Summary is empty.
func (s Step) String() string { return cmp.Or(s.Summary, s.Command) }

// Difference is one thing that is not as Setup left it.
type Difference struct {
	// Kind is what differs:
	//
	//	link-missing         a link of the wiring is gone
	//	link-extra           a link with guestwire's mark or group is not of the wiring
	//	link-other           another link has the name of a link of the wiring
	//	name                 a link has another name
	//	mac                  a link has another MAC
	//	mtu                  a link has another MTU
	//	txqueuelen           a link has another length of its queue
	//	up                   a link is down that must be up, or up that must be down
	//	master               a link is no port of its bridge, or a port of another one
	//	arp                  ARP of a link is off that must be on, or the reverse
	//	allmulticast         a link receives all multicast and must not, or the reverse
	//	addrgenmode          a link makes its IPv6 link-local address in another way
	//	group                a link is in another group
	//	alias                a link has another alias, which is guestwire's mark
	//	tap-owner            a tap is of another user or group
	//	tap-queues           a tap is of one queue and must be of several, or the reverse
	//	tap-offloads         a VMM that has ended left offloads at a tap
	//	bridge-setting       a property of a bridge has another value
	//	bridge-port-setting  a property of a bridge's port has another value
	//	sysctl               a value below /proc/sys/net is another
	//	address-missing      an address is gone
	//	address-extra        a link has an address that is not of the wiring
	//	address-other        an address has other flags or lifetimes, or is not in its place
	//	route-missing        a route is gone
	//	route-extra          there is a route that is not of the wiring
	//	neighbour-missing    a permanent neighbour is gone
	//	neighbour-extra      there is a permanent neighbour that is not of the wiring
	//	fdb-missing          a static entry of a bridge's forwarding database is gone
	//	fdb-extra            there is a static entry that is not of the wiring
	//	qdisc-missing        the ingress qdisc of a link is gone (tc)
	//	shape                the root qdisc of the guest's tap limits in another way, or not (tc)
	//	filter-missing       a filter of a link is gone (tc)
	//	filter-other         a filter of a link is another than Setup's (tc)
	//	filter-foreign       a link has a filter of another program (tc)
	//	table-missing        an nftables table is gone, or the wiring's chains of iptables
	//	table-extra          a table with guestwire's mark is not of the wiring
	//	table-other          rules of a table are others than Setup's
	//	gateway              a gateway has another MAC than the record
	//	networks             what nic-networks means has changed since the last Setup
	//	forwarding           another link forwards since the last Setup, or forwards no more
	//	resolver             the namespace's resolver on loopback listens at other ports than at the last Setup
	//	later                the namespace has got an address, route or rule that the guest has not
	//	record               the record is gone or changed, or the launcher cannot read it
	//	step                 none of these: Text has the operation that is missing
	Kind string `json:"kind"`

	// Link is the link that differs, by the name that Setup gave it. Empty: none, or several.
	Link string `json:"link,omitempty"`

	// Text is the difference in words, such as "eth0-tap is no port of eth0-br".
	Text string `json:"text"`
}

// String returns Text.
func (d Difference) String() string { return d.Text }

// StepError is the operation that the kernel refused. JSON has Err's text.
type StepError struct {
	Step, Steps int    // from 1; the number of the plan's operations
	Kind, Link  string // those of the Step
	Command     string // first line of the Step's text
	Err         error  // wraps the kernel's errno
}

func (e *StepError) Error() string {
	return fmt.Sprintf("step %d of %d: %s: %v", e.Step, e.Steps, e.Command, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

func (e *StepError) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Step    int    `json:"step"`
		Steps   int    `json:"steps"`
		Kind    string `json:"kind"`
		Link    string `json:"link,omitempty"`
		Command string `json:"command"`
		Error   string `json:"error"`
	}{e.Step, e.Steps, e.Kind, e.Link, e.Command, fmt.Sprint(e.Err)})
}
