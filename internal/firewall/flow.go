package firewall

import (
	"fmt"
	"slices"
	"strings"
)

// FlowTable is a flow table of an inet table: the packets of connections that rules add with [Offload] pass from link
// to link before the kernel's stack sees them. What it holds is no part of the table.
type FlowTable struct {
	Name string
	// Devices are the links by which the packets come in and leave.
	Devices  []string
	Priority int // among the chains at the links' hook ingress
	// Counts: what passes is counted for its connection, if the namespace counts connections (nf_conntrack_acct).
	Counts bool
}

type (
	// Offload adds the packet's connection to a flow table, and continues with the next rule. What the kernel cannot
	// offload stays with the rules.
	Offload struct{ Table string }
	// Assured is a connection that has proved to be one: of TCP, after the opening, of UDP, with packets in both
	// directions for more than two seconds.
	Assured struct{}
	// Lasting is a connection that the kernel would keep for more than so many seconds without a packet.
	Lasting struct{ Seconds uint32 }
)

func (Offload) verdict() {}
func (Assured) match()   {}
func (Lasting) match()   {}

func (v Offload) String() string { return "flow add @" + v.Table }
func (Assured) String() string   { return "ct status assured" }
func (m Lasting) String() string { return fmt.Sprintf("ct expiration > %ds", m.Seconds) }

// String returns the flow table as nft -f reads it.
func (f FlowTable) String() string { return fmt.Sprintf("flowtable %s { %s }", f.Name, f.Head()) }

// Head returns what the kernel keeps of the flow table in addition to its name, the links in alphabetical order.
func (f FlowTable) Head() string {
	var names []string
	for _, d := range f.Devices {
		names = append(names, fmt.Sprintf("%q", d))
	}
	slices.Sort(names)
	head := fmt.Sprintf("hook ingress priority %d;", f.Priority)
	if len(names) > 0 {
		head += " devices = { " + strings.Join(names, ", ") + " };"
	}
	if f.Counts {
		head += " counter;"
	}
	return head
}
