package netstate

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/syntax"
)

func (o TapAdd) String() string {
	text := fmt.Sprintf("ip tuntap add %s mode tap user %d", infra.ShellWord(o.Link), o.Tap.Owner.UID)
	if o.Tap.Owner.GID != 0 {
		text += fmt.Sprintf(" group %d", o.Tap.Owner.GID)
	}
	if o.VNetHeader {
		text += " vnet_hdr"
	}
	if o.Tap.MultiQueue {
		text += " multi_queue"
	}
	if o.Context != "" {
		text = "runcon " + infra.ShellWord(o.Context) + " " + text
	}
	return text
}

// String is the part of the operation that a command has.
func (o TapReset) String() string {
	return fmt.Sprintf("ethtool -K %s tx off", infra.ShellWord(o.Link))
}

func (o LinkAdd) String() string {
	text := fmt.Sprintf("ip link add %s address %v mtu %d group %d type %s", infra.ShellWord(o.Name), o.MAC, o.MTU, o.Group, o.Kind)
	if o.Kind == "bridge" {
		text += " mcast_snooping 0"
	}
	return text
}

func (o LinkDel) String() string { return "ip link del " + infra.ShellWord(o.Link) }

func (o GroupDel) String() string { return fmt.Sprintf("ip link del group %d", o.Group) }

func (o BridgeSet) String() string {
	text := "ip link set " + infra.ShellWord(o.Link) + " type bridge"
	for _, name := range o.Settings.Names() {
		text += fmt.Sprintf(" %s %d", name, o.Settings[name])
	}
	return text
}

func (o BridgePortSet) String() string {
	text := "bridge link set dev " + infra.ShellWord(o.Link)
	for _, name := range o.Settings.Names() {
		text += " " + name + " " + portValue(name, o.Settings[name])
	}
	return text
}

// portValue is the value as bridge(8) writes it.
func portValue(name string, value uint32) string {
	if switches := []string{"off", "on"}; value <= 1 && name != StateSetting && name != "mcast_router" && name != "group_fwd_mask" {
		return switches[value]
	}
	return fmt.Sprint(value)
}

func (o ConfSet) String() string {
	value := "0"
	if o.On {
		value = "1"
	}
	return SysctlSet{"net/ipv4/conf/" + o.Link + "/" + o.Name, value}.String()
}

func (o SysctlSet) String() string {
	if o.Value == "" {
		return "sysctl -w " + infra.ShellWord(o.Path) + "="
	}
	return "sysctl -w " + infra.ShellWord(o.Path) + "=" + infra.ShellWord(o.Value)
}

func (o AddressAdd) String() string {
	verb := "add"
	if o.Address.Prefix.Addr().Is6() {
		verb = "replace"
	}
	return "ip addr " + verb + " " + addressText(o.Address, o.Link)
}

func (o AddressDel) String() string {
	return fmt.Sprintf("ip addr del %v dev %s", o.Address.Prefix, infra.ShellWord(o.Link))
}

func addressText(a Address, link string) string {
	text := a.Prefix.String()
	if a.Peer.IsValid() {
		text = fmt.Sprintf("%v peer %v", a.Prefix.Addr(), a.Peer)
	}
	if a.Broadcast.IsValid() {
		text += " broadcast " + a.Broadcast.String()
	}
	text += " dev " + infra.ShellWord(link)
	if a.Label != "" && a.Label != link {
		text += " label " + infra.ShellWord(a.Label)
	}
	if a.Scope != ScopeUniverse {
		text += " scope " + scopeText(a.Scope)
	}
	if a.Metric != 0 {
		text += fmt.Sprintf(" metric %d", a.Metric)
	}
	if a.ValidSeconds != Forever {
		text += fmt.Sprintf(" valid_lft %d", a.ValidSeconds)
	}
	if a.PreferredSeconds != Forever {
		text += fmt.Sprintf(" preferred_lft %d", a.PreferredSeconds)
	}
	for _, f := range []struct {
		bit  uint32
		name string
	}{{AddrNoDAD, "nodad"}, {0x10, "home"}, {0x100, "mngtmpaddr"}, {AddrNoPrefixRoute, "noprefixroute"}, {0x400, "autojoin"}} {
		if a.Flags&f.bit != 0 {
			text += " " + f.name
		}
	}
	return text
}

func scopeText(scope uint8) string {
	switch scope {
	case ScopeUniverse:
		return "global"
	case ScopeLink:
		return "link"
	case ScopeHost:
		return "host"
	}
	return fmt.Sprint(scope)
}

func (o RouteAdd) String() string { return "ip route add " + RouteText(o.Route, o.Link, o.Hops) }

func (o RouteDel) String() string { return "ip route del " + RouteText(o.Route, o.Link, o.Hops) }

// RouteText is the route in the words of ip-route(8). Hops are the links of Route.Hops.
func RouteText(r Route, link string, hops []string) string {
	text := networkText(r.Destination)
	if r.Destination.Bits() == 0 && r.Destination.Addr().Is6() {
		text = "::/0"
	}
	if name, ok := map[uint8]string{2: "local", 3: "broadcast", 5: "multicast", 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}[r.Type]; ok {
		text = name + " " + text
	}
	if r.Source.IsValid() {
		text += " from " + r.Source.String()
	}
	if r.TOS != 0 {
		text += fmt.Sprintf(" tos %#x", r.TOS)
	}
	text += hopText(r.Gateway, link, r.OnLink)
	if r.Table != TableMain {
		text += fmt.Sprintf(" table %d", r.Table)
	}
	if r.Scope != ScopeUniverse {
		text += " scope " + scopeText(r.Scope)
	}
	if r.Protocol != ProtocolBoot && r.Protocol != 0 {
		text += fmt.Sprintf(" proto %d", r.Protocol)
	}
	if r.PrefSrc.IsValid() {
		text += " src " + r.PrefSrc.String()
	}
	if r.Metric != 0 {
		text += fmt.Sprintf(" metric %d", r.Metric)
	}
	if r.MTU != 0 {
		text += fmt.Sprintf(" mtu %d", r.MTU)
	}
	if r.ExpiresSeconds != 0 {
		text += fmt.Sprintf(" expires %d", r.ExpiresSeconds)
	}
	for i, h := range r.Hops {
		text += " nexthop" + hopText(h.Gateway, hops[i], h.OnLink) + fmt.Sprintf(" weight %d", int(h.Weight)+1)
	}
	return text
}

func hopText(gateway netip.Addr, link string, onLink bool) string {
	text := ""
	if gateway.IsValid() {
		text = " via " + gateway.String()
	}
	if link != "" {
		text += " dev " + infra.ShellWord(link)
	}
	if onLink {
		text += " onlink"
	}
	return text
}

func (o NeighbourAdd) String() string {
	if !o.Neighbour.Address.IsValid() {
		return fmt.Sprintf("bridge fdb replace %v dev %s master static", o.Neighbour.MAC, infra.ShellWord(o.Link))
	}
	text := fmt.Sprintf("ip neigh replace %v lladdr %v dev %s nud permanent", o.Neighbour.Address, o.Neighbour.MAC, infra.ShellWord(o.Link))
	if o.Neighbour.Flags&NeighbourRouter != 0 {
		text += " router"
	}
	if o.Neighbour.Flags&NeighbourExtLearned != 0 {
		text += " extern_learn"
	}
	return text
}

func (o NeighbourDel) String() string {
	if !o.Neighbour.Address.IsValid() {
		return fmt.Sprintf("bridge fdb del %v dev %s master", o.Neighbour.MAC, infra.ShellWord(o.Link))
	}
	return fmt.Sprintf("ip neigh del %v dev %s", o.Neighbour.Address, infra.ShellWord(o.Link))
}

func (o IngressAdd) String() string {
	return "tc qdisc add dev " + infra.ShellWord(o.Link) + " " + QdiscKind(o.Clsact)
}

func (o IngressDel) String() string {
	return "tc qdisc del dev " + infra.ShellWord(o.Link) + " " + QdiscKind(o.Clsact)
}

func (o ShapeSet) String() string {
	if o.Shape == (Shape{}) {
		return "tc qdisc del dev " + infra.ShellWord(o.Link) + " root"
	}
	return fmt.Sprintf("tc qdisc replace dev %s root handle %x: %v", infra.ShellWord(o.Link), ShapeHandle, o.Shape)
}

// String is the shape in the words of tc(8).
func (s Shape) String() string {
	if s.Other != "" {
		return s.Other
	}
	return fmt.Sprintf("tbf rate %dbit burst %d limit %d", s.Rate*8, s.Burst, s.Limit)
}

// QdiscKind is the kind of a qdisc, as tc(8) has it.
func QdiscKind(clsact bool) string {
	if clsact {
		return "clsact"
	}
	return "ingress"
}

// Side is where the filter is.
func (f Filter) Side() string {
	if f.Copies {
		return "egress"
	}
	return "ingress"
}

func (o FilterAdd) String() string {
	text := fmt.Sprintf("tc filter add dev %s %s pref %d protocol %s u32", infra.ShellWord(o.Link), o.Filter.Side(), o.Filter.Priority, protocolText(o.Filter.Protocol))
	for _, k := range o.Filter.Keys {
		text += fmt.Sprintf(" match u32 %#x %#x at %d", k.Value, k.Mask, k.Offset)
	}
	if o.Filter.Clears {
		return text + " action vlan modify id 1 continue"
	}
	if o.Filter.Copies {
		return text + " action mirred egress mirror dev " + infra.ShellWord(o.Target)
	}
	side := "egress"
	if o.Filter.Ingress {
		side = "ingress"
	}
	return text + " action mirred " + side + " redirect dev " + infra.ShellWord(o.Target)
}

func (o FilterDel) String() string {
	return fmt.Sprintf("tc filter del dev %s %s pref %d protocol %s", infra.ShellWord(o.Link), o.Filter.Side(), o.Filter.Priority, protocolText(o.Filter.Protocol))
}

func protocolText(p uint16) string {
	switch p {
	case EthernetAll:
		return "all"
	case EthernetIPv4:
		return "ip"
	case EthernetARP:
		return "arp"
	case EthernetIPv6:
		return "ipv6"
	}
	return fmt.Sprintf("%#x", p)
}

func (o TableSet) String() string {
	if o.Table.Family.IPTables() != 0 {
		return fmt.Sprintf("%s-restore --noflush <<'EOF'\n%vEOF", o.Table.Family, o.Table)
	}
	return "nft -f - <<'EOF'\n" + o.Table.String() + "EOF"
}

func (o TableChange) String() string { return "nft -f - <<'EOF'\n" + o.Change.String() + "EOF" }

func (o TableDel) String() string {
	if o.Family.IPTables() != 0 {
		chains := strings.ReplaceAll(o.Name, ".", `\.`) + "-[a-z]+( |$)"
		return fmt.Sprintf("%s-save | grep -vE %s | %s-restore", o.Family, infra.ShellWord(chains), o.Family)
	}
	return o.Family.Deletion(infra.ShellWord(o.Name))
}

// String is the command, or a line for each range of ports. A range is a comment, as conntrack(8) takes one port or
// all.
func (o ConnectionsDel) String() string {
	where := ""
	for _, a := range []struct {
		flag   string
		prefix netip.Prefix
	}{{"orig-src", o.OrigSrc}, {"orig-dst", o.OrigDst}, {"reply-src", o.ReplySrc}, {"reply-dst", o.ReplyDst}} {
		if a.prefix.IsValid() {
			where += fmt.Sprintf(" --%s %s", a.flag, networkText(a.prefix))
		}
	}
	switch {
	case o.Portless:
		return "# for each PROTOCOL without ports: conntrack -D -p PROTOCOL" + where
	case len(o.Ports) == 0:
		return "conntrack -D" + where
	}
	var lines []string
	for _, p := range o.Ports {
		p := syntax.Ports(p).Full()
		line := "conntrack -D -p " + p.Protocol + where
		switch {
		case p.First == p.Last:
			line += fmt.Sprintf(" --orig-port-dst %d", p.First)
		case p.First > 1 || p.Last < 65535:
			line = fmt.Sprintf("# for each PORT from %d to %d: %s --orig-port-dst PORT", p.First, p.Last, line)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// networkText is the prefix as ip(8) writes it.
func networkText(p netip.Prefix) string {
	if p.Bits() == 0 {
		return "default"
	}
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
