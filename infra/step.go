package infra

import (
	"cmp"
	"encoding/json"
	"fmt"
)

// Step is one operation of a plan.
type Step struct {
	// Kind is one of:
	//
	//	tap-add
	//	link-add, link-set, link-del, group-del (all links of a group)
	//	bridge-set, bridge-port-set (settings of a bridge and of its ports)
	//	address-add, address-del
	//	route-add, route-del
	//	neighbour-add, neighbour-del
	//	fdb-add, fdb-del (static entries of a bridge's forwarding database)
	//	qdisc-add, qdisc-del, filter-add, filter-del (tc)
	//	table-set, table-del (nftables, or the wiring's chains in iptables)
	//	sysctl-set
	//	connections-del (connections that the kernel tracks)
	//	record-write (the file for Phase2; Check has it, and Plan does not)
	Kind string `json:"kind"`
	// Link is the link that the operation is on, by the name that it has at that point of the plan. Empty: none, or
	// several.
	Link string `json:"link,omitempty"`
	// Command is what an administrator would type for the operation. A table of nftables or iptables has several lines.
	Command string `json:"command"`
	// Summary is a line in the place of a Command that gives a table: the program, and in a comment what the table does.
	// Empty: the Command is short.
	Summary string `json:"summary,omitempty"`
}

// String is the Summary, or without one the Command.
func (s Step) String() string { return cmp.Or(s.Summary, s.Command) }

// Difference is one thing in which a kernel or a record differs from what Setup left.
type Difference struct {
	// Kind is one of:
	//
	//	link-missing, link-extra, link-other (a link of the wiring's name, but of another kind)
	//	name, mac, mtu, txqueuelen, up, master, arp, allmulticast, addrgenmode, group, alias (of a link)
	//	tap-owner, tap-queues
	//	bridge-setting, bridge-port-setting
	//	address-missing, address-extra, address-other (another flag, scope, lifetime or place in the list)
	//	route-missing, route-extra
	//	neighbour-missing, neighbour-extra
	//	fdb-missing, fdb-extra (static entries of a bridge's forwarding database)
	//	qdisc-missing, filter-missing, filter-other, filter-foreign (tc; foreign: of another program)
	//	table-missing, table-extra, table-other (nftables, or the wiring's chains in iptables)
	//	sysctl
	//	gateway (the IPv6 gateway has another MAC than the record's router, or the IPv4 gateway than the record's stand-in)
	//	record (the file for Phase2, and whether the launcher can read it)
	//	step (an operation that this list has no kind for)
	Kind string `json:"kind"`
	// Link is the link that differs. Empty: none, or several.
	Link string `json:"link,omitempty"`
	// Text says it in words: "eth0-tap is no port of eth0-br".
	Text string `json:"text"`
}

// String is the text.
func (d Difference) String() string { return d.Text }

// StepError says which operation of a plan the kernel refused. In JSON, Err is its text in "error".
type StepError struct {
	// Step counts from 1 to Steps, the number of the plan's operations.
	Step, Steps int
	// Kind and Link are those of the Step.
	Kind, Link string
	// Command is the first line of the Step's text.
	Command string
	// Err wraps the kernel's errno.
	Err error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("step %d of %d: %s: %v", e.Step, e.Steps, e.Command, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// MarshalJSON writes the fields, and the text of Err.
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
