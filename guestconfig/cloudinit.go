package guestconfig

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// Instance is what cloud-init needs in addition to the network.
type Instance struct {
	// ID is required. When it changes, cloud-init does the work of a first boot again.
	ID string

	// Hostname is the guest's. Empty: that of the first record that has one in its Options.
	Hostname string

	// UserData is the file user-data, such as "#cloud-config\n...". Empty: a file that asks for
	// nothing.
	UserData string
}

// NoCloud returns meta-data, user-data and network-config (version 2) for cloud-init's data source NoCloud. They are
// the files of an ISO 9660 or FAT file system with the label CIDATA, such as
//
//	genisoimage -quiet -volid CIDATA -joliet -rock -output seed.iso DIR
//
// With netplan (Ubuntu, Debian's cloud images) the files find the guest's link by its MAC, and its name does not
// change. With networkd, ifupdown and ifcfg the link must have the record's Name.
//
// cloud-init's renderers for networkd, NetworkManager, ifcfg and ifupdown take the files too, and a warning names what
// such a guest lacks. For their sake a route without a gateway has the gateway 0.0.0.0 or ::, which means none, and a
// gateway outside of the NIC's networks has a route of its own.
//
// Version 2 has no permanent neighbours, peers and multipath routes, and not all attributes. Version 2 gives each
// address a route to its network. So an address without that route becomes a /32 or /128. A ConfigDrive has no version
// 2. Source: cloud-init's "NoCloud" and "Networking config Version 2"; netplan-yaml(5).
func NoCloud(g Guest, i Instance) (Files, error) {
	const format = "cloud-init"
	nics, err := g.nics(format)
	if err != nil {
		return Files{}, err
	}
	if i.ID == "" {
		return Files{}, &formatError{Format: format, Reason: "the instance has no ID: want one, which stays the same as long as the guest's disk"}
	}
	for _, n := range nics {
		if i.Hostname == "" {
			i.Hostname = n.Options.Hostname
		}
	}
	meta := "instance-id: " + quoted(i.ID) + "\n"
	if i.Hostname != "" {
		meta += "local-hostname: " + quoted(i.Hostname) + "\n"
	}
	if i.UserData == "" {
		i.UserData = "#cloud-config\n{}\n"
	}
	network := "version: 2\nethernets:\n"
	for _, n := range nics {
		network += n.ethernet()
	}
	return Files{
		Contents: map[string]string{"meta-data": meta, "user-data": i.UserData, "network-config": network},
		Warnings: collect(nics),
	}, nil
}

// quoted is the text as a scalar of YAML in double quotes, in ASCII: YAML has Go's escapes, and its readers refuse some
// characters that are not escaped, such as DEL.
func quoted(text string) string { return strconv.QuoteToASCII(text) }

// yaml writes mappings and lists, indented.
type yaml struct{ strings.Builder }

func (y *yaml) line(depth int, format string, args ...any) {
	fmt.Fprintf(y, strings.Repeat("  ", depth)+format+"\n", args...)
}

// pair is a key with its value as YAML.
type pair struct{ key, value string }

// item writes a mapping as an item of a list.
func (y *yaml) item(depth int, pairs []pair) {
	for i, p := range pairs {
		mark := "  "
		if i == 0 {
			mark = "- "
		}
		y.line(depth, "%s%s: %s", mark, p.key, p.value)
	}
}

func (y *yaml) list(depth int, items []string) {
	for _, item := range items {
		y.line(depth, "- %s", quoted(item))
	}
}

// ethernet is the interface's part of the network-config.
func (n *nic) ethernet() string {
	var y yaml
	y.line(1, "%s:", quoted(n.Name))
	y.line(2, "match:")
	y.line(3, "macaddress: %s", quoted(n.MAC.String()))
	if n.MTU != 0 {
		y.line(2, "mtu: %d", n.MTU)
	}
	y.line(2, "dhcp4: false")
	y.line(2, "dhcp6: false")
	y.line(2, "accept-ra: false")
	if !n.hasIPv6() {
		y.line(2, "link-local: []")
	}
	routes := n.sayable()
	var addresses []string
	for _, a := range n.given() {
		addresses = append(addresses, n.version2Address(a, &routes))
	}
	if len(addresses) > 0 {
		y.line(2, "addresses:")
		y.list(3, addresses)
	}
	if servers, search := n.dns.Servers, n.dns.Search; len(servers)+len(search) > 0 {
		y.line(2, "nameservers:")
		if len(servers) > 0 {
			y.line(3, "addresses:")
			for _, s := range servers {
				y.line(4, "- %s", quoted(s.String()))
			}
		}
		if len(search) > 0 {
			y.line(3, "search:")
			y.list(4, search)
		}
	}
	if len(n.ntp) > 0 {
		n.warn("the time servers %v are left out: network configuration has none, user-data can name them", n.ntp)
	}
	routes = n.forRenderers(routes)
	if len(routes) > 0 {
		y.line(2, "routes:")
		for _, r := range routes {
			y.item(3, version2Route(r))
		}
	}
	if len(n.was.Rules) > 0 {
		y.line(2, "routing-policy:")
		for _, r := range n.was.Rules {
			y.item(3, version2Rule(r))
		}
	}
	n.warnRenderers(routes)
	for _, o := range n.was.Neighbours {
		n.warn("the permanent neighbour %v (%v) is left out, as version 2 has none: %s", o.Address, o.MAC, n.answered(o.Address))
	}
	return y.String()
}

// version2Address is the address as version 2 can say it. It adds the routes that the address then does not imply.
func (n *nic) version2Address(a cache.StaticAddress, routes *[]cache.StaticRoute) string {
	own := a.Address.Addr()
	single := netip.PrefixFrom(own, own.BitLen())
	if a.Deprecated {
		n.warn("the address %v is deprecated, which version 2 does not say: the guest may choose it as a source", own)
	}
	if a.Scope != scopeGlobal && !own.IsLinkLocalUnicast() {
		n.warn("the address %v has scope %d, and the guest's has scope global: version 2 has no scopes of addresses", own, a.Scope)
	}
	switch {
	case a.Peer.IsValid():
		n.warn("the address %v is without its peer %v, which version 2 does not say: the guest gets a route", own, a.Peer)
		if !a.NoPrefixRoute {
			*routes = append([]cache.StaticRoute{connected(a.Peer.Masked())}, *routes...)
		}
		return single.String()
	case a.NoPrefixRoute && a.Address != single:
		n.warn("the address %v is written as %v: no route of the namespace leads to its network", a.Address, single)
		return single.String()
	}
	return a.Address.String()
}

// connected is a route on the link.
func connected(to netip.Prefix) cache.StaticRoute {
	r := cache.StaticRoute{Destination: to, Table: tableMain}
	if to.Addr().Is4() {
		r.Scope = scopeLink
	}
	return r
}

// sayable are the NIC's routes as far as version 2 can say them.
func (n *nic) sayable() []cache.StaticRoute {
	var routes []cache.StaticRoute
	for _, r := range n.was.Routes {
		if len(r.Hops) > 0 {
			hop := r.Hops[0]
			r.Gateway, r.OnLink = hop.Gateway, hop.OnLink
			if len(r.Hops) > 1 {
				first := "on the link"
				if hop.Gateway.IsValid() {
					first = hop.Gateway.String()
				}
				n.warn("the route to %v of table %d has %d next hops: the guest gets the first, %s, as version 2 has no multipath routes", r.Destination, r.Table, len(r.Hops), first)
			}
		}
		switch {
		case r.Gateway.IsValid() && r.Gateway.Is4() != r.Destination.Addr().Is4():
			n.warn("the route to %v of table %d is left out: version 2 cannot say its gateway %v, of another family", r.Destination, r.Table, r.Gateway)
		case r.From.IsValid():
			n.warn("the route to %v of table %d is left out: version 2 cannot say that it is for packets from %v alone", r.Destination, r.Table, r.From)
		default:
			routes = append(routes, r)
		}
	}
	return routes
}

// forRenderers adds the routes without which cloud-init's renderers other than netplan's lose one of these.
func (n *nic) forRenderers(routes []cache.StaticRoute) []cache.StaticRoute {
	var all []cache.StaticRoute
	// The renderer for NetworkManager ends with an error at an IPv6 default route with a metric, unless another IPv6 route
	// precedes it (seen in cloud-init 25.1). The guest has this one in any case.
	if slices.ContainsFunc(routes, func(r cache.StaticRoute) bool { return isDefault6(r) && hasMetric(r) }) {
		all = append(all, connected(netip.MustParsePrefix("fe80::/64")))
	}
	for _, r := range routes {
		// The renderer for networkd leaves out on-link, and networkd waits for a route to the gateway.
		if r.Gateway.IsValid() && r.OnLink && r.Table == tableMain && !n.inside(r.Gateway) {
			hop := netip.PrefixFrom(r.Gateway, r.Gateway.BitLen())
			if !slices.ContainsFunc(routes, func(r cache.StaticRoute) bool { return r.Destination == hop && r.Table == tableMain }) {
				all = append(all, connected(hop))
			}
		}
		all = append(all, r)
	}
	return all
}

// inside reports whether an address of the NIC makes a route to the gateway.
func (n *nic) inside(gateway netip.Addr) bool {
	return gateway.Is6() && gateway.IsLinkLocalUnicast() || slices.ContainsFunc(n.was.Addresses, func(a cache.StaticAddress) bool {
		return !a.NoPrefixRoute && !a.Peer.IsValid() && a.Address.Masked().Contains(gateway)
	})
}

func isDefault6(r cache.StaticRoute) bool {
	return r.Destination.Bits() == 0 && r.Destination.Addr().Is6()
}

// hasMetric reports whether the route's metric is written. The one that the kernel gives an IPv6 route is not.
func hasMetric(r cache.StaticRoute) bool {
	return r.Metric != 0 && (r.Metric != metric6 || r.Destination.Addr().Is4())
}

// version2Route is the route. Where it has no gateway, it gets 0.0.0.0 or ::, which the programs take for none:
// cloud-init's renderers for ifcfg and ifupdown end with an error if a route has no via.
func version2Route(r cache.StaticRoute) []pair {
	pairs := []pair{{"to", quoted(r.Destination.String())}}
	add := func(key string, given bool, value any) {
		if given {
			pairs = append(pairs, pair{key, fmt.Sprint(value)})
		}
	}
	add("type", r.Type != "", quoted(r.Type))
	via := r.Gateway
	if !via.IsValid() {
		if via = netip.IPv6Unspecified(); r.Destination.Addr().Is4() {
			via = netip.IPv4Unspecified()
		}
	}
	add("via", true, quoted(via.String()))
	add("on-link", onLink(r), true)
	add("scope", r.Type == "" && via.Is4() && via.IsUnspecified(), "link")
	add("from", r.Source.IsValid(), quoted(r.Source.String()))
	add("table", r.Table != tableMain, r.Table)
	add("metric", hasMetric(r), r.Metric)
	add("mtu", r.MTU != 0, r.MTU)
	return pairs
}

// version2Rule is the rule. netplan wants a source or a destination.
func version2Rule(r cache.StaticRule) []pair {
	from := r.Source
	if !from.IsValid() {
		from = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.IPv6 {
			from = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	return []pair{{"from", quoted(from.String())}, {"table", fmt.Sprint(r.Table)}, {"priority", fmt.Sprint(r.Priority)}}
}

// warnRenderers warns of what a guest lacks for which cloud-init does not write netplan's configuration.
func (n *nic) warnRenderers(routes []cache.StaticRoute) {
	var lacks []string
	add := func(is bool, format string, args ...any) {
		if is {
			lacks = append(lacks, fmt.Sprintf(format, args...))
		}
	}
	some := func(is func(r cache.StaticRoute) bool) bool { return slices.ContainsFunc(routes, is) }
	is6 := func(r cache.StaticRoute) bool { return r.Destination.Addr().Is6() }
	both := slices.ContainsFunc(n.given(), func(a cache.StaticAddress) bool { return a.Address.Addr().Is4() })
	add(len(n.was.Rules) > 0, "leaves out the policy rules")
	add(some(func(r cache.StaticRoute) bool { return r.Table != tableMain }), "writes the routes of other tables into the table main")
	add(some(func(r cache.StaticRoute) bool { return r.Source.IsValid() }), "leaves out the source of routes")
	add(some(func(r cache.StaticRoute) bool { return r.MTU != 0 }), "leaves out, except for NetworkManager, the MTU of routes")
	add(some(func(r cache.StaticRoute) bool { return hasMetric(r) && r.Table == tableMain }), "leaves out the metric of routes (in version 22.4)")
	add(both && some(func(r cache.StaticRoute) bool { return isDefault6(r) && hasMetric(r) }), "gives, for ifcfg, the metric of the IPv6 default route to that of IPv4")
	for _, kind := range []string{"blackhole", "unreachable", "prohibit", "throw"} {
		add(some(func(r cache.StaticRoute) bool { return r.Type == kind }), "makes a route on the link of a route of type %s", kind)
	}
	add(some(isDefault6), "writes ::/64 for the IPv6 default route (in version 22.4)")
	add(some(is6) && both, "leaves out, for NetworkManager, IPv6 routes (in version 22.4)")
	var failing []netip.Prefix // ifup adds routes after the first address, by route(8) without a link
	for _, r := range routes {
		if is6(r) && both || !r.Gateway.IsValid() || r.Gateway.IsLinkLocalUnicast() && is6(r) || !n.inside(r.Gateway) {
			failing = append(failing, r.Destination)
		}
	}
	add(len(failing) > 0, "leaves out, for ifupdown, the routes to %v", failing)
	if some(func(r cache.StaticRoute) bool { return r.Type != "" }) {
		n.warn("netplan refuses the whole file if it writes for NetworkManager, which has no routes of a type")
	}
	if len(lacks) > 0 {
		n.warn("where the guest's cloud-init does not write for netplan, it %s", strings.Join(lacks, "; "))
	}
}
