package infra

import (
	"cmp"
	"encoding/json"
	"fmt"
)

// Step is one operation of a plan.
type Step struct {
	// Kind is one of tap-add, link-add, link-set, link-del, group-del (all links of a group), bridge-set, bridge-port-set,
	// address-add, address-del, route-add, route-del, neighbour-add, neighbour-del, fdb-add, fdb-del (static entries of a
	// bridge), sysctl-set, qdisc-add, qdisc-del, filter-add, filter-del (tc), table-set, table-del (nftables or iptables),
	// table-change, connections-del (that the kernel tracks), record-write (the file for Phase2; of Check alone).
	Kind string `json:"kind"`
	Link string `json:"link,omitempty"` // by its name at that point of the plan; empty: none, or several
	// Command is what an administrator would type, of several lines for a table of nftables or iptables.
	Command string `json:"command"`
	// Summary is one line in the place of a table: the program, and what the table does. Empty: use Command.
	Summary string `json:"summary,omitempty"`
}

func (s Step) String() string { return cmp.Or(s.Summary, s.Command) }

// Difference is one thing that is not as Setup left it.
type Difference struct {
	// Kind is one of link-missing, link-extra, link-other, name, mac, mtu, txqueuelen, up, master, arp, allmulticast,
	// addrgenmode, group, alias (of a link), tap-owner, tap-queues, bridge-setting, bridge-port-setting, sysctl,
	// address-missing, address-extra, address-other, route-missing, route-extra, neighbour-missing, neighbour-extra,
	// fdb-missing, fdb-extra, qdisc-missing, filter-missing, filter-other, filter-foreign (another program's),
	// table-missing, table-extra, table-other, gateway (it has another MAC than the record), record (the file for Phase2,
	// and whether the launcher can read it), step (none of these).
	Kind string `json:"kind"`
	Link string `json:"link,omitempty"` // empty: none, or several
	Text string `json:"text"`           // such as "eth0-tap is no port of eth0-br"
}

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
