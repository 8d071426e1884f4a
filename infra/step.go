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
