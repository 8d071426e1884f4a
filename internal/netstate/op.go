package netstate

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Op is one operation on a namespace, one of the types below. Its text is the command that an
// administrator would type. It names a link as the link is named at that point of the plan.
type Op interface {
	fmt.Stringer
	// kind returns the operation's kind, as the documentation of infra.Step lists them, and the link that the
	// operation is on, or an empty string.
	kind() (kind, link string)
}

// Deletes reports whether the operation deletes the link.
func Deletes(op Op, l Link) bool {
	switch o := op.(type) {
	case LinkDel:
		return o.Index == l.Index
	case GroupDel:
		return o.Group == l.Group
	}
	return false
}

// Step returns the operation as a caller of package phase1 sees it.
func Step(op Op) infra.Step {
	kind, link := op.kind()
	step := infra.Step{Kind: kind, Link: link, Command: op.String()}
	program, _, _ := strings.Cut(step.Command, " <<")
	switch o := op.(type) {
	case TableSet:
		step.Summary = program + "    # " + o.Table.Summary()
	case TableChange:
		step.Summary = program + "    # " + o.Change.Summary()
	}
	return step
}

// Steps returns the operations as a caller of package phase1 sees them. The result is never nil, which would
// be null in JSON.
func Steps(ops []Op) []infra.Step {
	steps := make([]infra.Step, 0, len(ops))
	for _, op := range ops {
		steps = append(steps, Step(op))
	}
	return steps
}

// Text is one command a line.
func Text(ops []Op) string {
	var b strings.Builder
	for _, op := range ops {
		b.WriteString(op.String())
		b.WriteByte('\n')
	}
	return b.String()
}

type (
	// TapAdd creates a persistent tap.
	TapAdd struct {
		Index      int
		Link       string
		Tap        Tap
		VNetHeader bool
		// Context is the tap's SELinux context; empty: that of the process which creates the tap.
		Context string
	}
	// TapReset gives a tap that no process has open the settings of a new one. Of a tap that a process has open, it
	// changes nothing.
	TapReset struct {
		Index      int
		Link       string
		MultiQueue bool
		// Context is as that of TapAdd: the kernel labels a tap with the context of each process that opens it.
		Context string
	}
	// LinkAdd creates a link of the kind dummy or bridge.
	LinkAdd struct {
		Index int
		Name  string
		Kind  string
		MAC   cache.MAC
		MTU   int
		Group uint32
	}
	BridgeSet struct {
		Index    int
		Link     string
		Settings Settings
	}
	LinkDel struct {
		Index int
		Link  string
	}
	GroupDel      struct{ Group uint32 }
	BridgePortSet struct {
		Index    int
		Link     string
		Settings Settings
	}
	// ConfSet switches an IPv4 setting of a link: "forwarding", "route_localnet", "accept_local", "proxy_arp",
	// "accept_source_route" or "arp_ignore".
	ConfSet struct {
		Index int
		Link  string
		Name  string
		On    bool
	}
	SysctlSet struct{ Path, Value string }
	// AddressAdd adds an address to a link, or changes the flags and lifetimes of an IPv6 address.
	AddressAdd struct {
		Link    string
		Address Address
		// Settle: the next operations wait until the kernel has made the local route of the IPv6 address, for which it
		// takes its time.
		Settle bool
	}
	AddressDel struct {
		Link    string
		Address Address
	}
	RouteAdd struct {
		Link  string
		Route Route
		Hops  []string // the links of Route.Hops
	}
	RouteDel struct {
		Link  string
		Route Route
		Hops  []string
	}
	// NeighbourAdd adds a permanent neighbour, or a static forwarding entry.
	NeighbourAdd struct {
		Link      string
		Neighbour Neighbour
	}
	// NeighbourDel deletes a neighbour or a forwarding entry.
	NeighbourDel struct {
		Link      string
		Neighbour Neighbour
	}
	// IngressAdd adds an ingress qdisc to a link, or a clsact qdisc, which has an egress too.
	IngressAdd struct {
		Index  int
		Link   string
		Clsact bool
	}
	// IngressDel deletes the qdisc with all its filters.
	IngressDel struct {
		Index  int
		Link   string
		Clsact bool
	}
	// ShapeSet makes a Shape the root qdisc of a link, or changes the one that is there, whose queue stays. Zero: it
	// deletes the root qdisc.
	ShapeSet struct {
		Index int
		Link  string
		Shape Shape
	}
	// FilterAdd adds a filter that redirects or copies matching frames to Target, or clears their checksums.
	FilterAdd struct {
		Link   string
		Filter Filter
		Target string
	}
	FilterDel struct {
		Link   string
		Filter Filter
	}
	// TableSet creates a table of nftables, or the wiring's chains in the tables of iptables. After a TableDel
	// of the same table, nftables replaces the table in one transaction.
	TableSet struct{ Table firewall.Table }
	// TableChange makes Table of the table of nftables that is there.
	TableChange struct {
		Table  firewall.Table
		Change firewall.Change
	}
	// TableDel deletes the table, or the chains.
	TableDel struct {
		Family firewall.Family
		Name   string
	}
	// ConnectionsDel has the kernel forget connections that it tracks: those for which all holds that is set. The
	// addresses are those of the first packet and of the answers to it, as conntrack(8) calls them.
	ConnectionsDel struct {
		OrigSrc  netip.Prefix `json:"origSrc,omitzero"`
		OrigDst  netip.Prefix `json:"origDst,omitzero"`
		ReplySrc netip.Prefix `json:"replySrc,omitzero"`
		ReplyDst netip.Prefix `json:"replyDst,omitzero"`
		// Ports are those to which they were opened; none: each port of each protocol.
		Ports []infra.Ports `json:"ports,omitempty"`
		// Portless are those of protocols without ports alone, such as ICMP, GRE and ESP.
		Portless bool `json:"portless,omitempty"`
	}
)

// Ops are operations of one kind, as a list of any.
func Ops[T Op](list []T) (ops []Op) {
	for _, o := range list {
		ops = append(ops, o)
	}
	return ops
}

func (o TapAdd) kind() (kind, link string)         { return "tap-add", o.Link }
func (o TapReset) kind() (kind, link string)       { return "tap-reset", o.Link }
func (o LinkAdd) kind() (kind, link string)        { return "link-add", o.Name }
func (o BridgeSet) kind() (kind, link string)      { return "bridge-set", o.Link }
func (o LinkSet) kind() (kind, link string)        { return "link-set", o.Have.Name }
func (o LinkDel) kind() (kind, link string)        { return "link-del", o.Link }
func (o GroupDel) kind() (kind, link string)       { return "group-del", "" }
func (o BridgePortSet) kind() (kind, link string)  { return "bridge-port-set", o.Link }
func (o ConfSet) kind() (kind, link string)        { return "sysctl-set", o.Link }
func (o SysctlSet) kind() (kind, link string)      { return "sysctl-set", "" }
func (o AddressAdd) kind() (kind, link string)     { return "address-add", o.Link }
func (o AddressDel) kind() (kind, link string)     { return "address-del", o.Link }
func (o RouteAdd) kind() (kind, link string)       { return "route-add", o.Link }
func (o RouteDel) kind() (kind, link string)       { return "route-del", o.Link }
func (o NeighbourAdd) kind() (kind, link string)   { return neighbourOrFDB(o.Neighbour) + "-add", o.Link }
func (o NeighbourDel) kind() (kind, link string)   { return neighbourOrFDB(o.Neighbour) + "-del", o.Link }
func (o IngressAdd) kind() (kind, link string)     { return "qdisc-add", o.Link }
func (o IngressDel) kind() (kind, link string)     { return "qdisc-del", o.Link }
func (o ShapeSet) kind() (kind, link string)       { return "shape-set", o.Link }
func (o FilterAdd) kind() (kind, link string)      { return "filter-add", o.Link }
func (o FilterDel) kind() (kind, link string)      { return "filter-del", o.Link }
func (o TableSet) kind() (kind, link string)       { return "table-set", "" }
func (o TableChange) kind() (kind, link string)    { return "table-change", "" }
func (o TableDel) kind() (kind, link string)       { return "table-del", "" }
func (o ConnectionsDel) kind() (kind, link string) { return "connections-del", "" }

// neighbourOrFDB distinguishes a neighbour from an entry of a bridge's forwarding database, which has no IP address.
func neighbourOrFDB(n Neighbour) string {
	if !n.Address.IsValid() {
		return "fdb"
	}
	return "neighbour"
}
