package guestconfig

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// Networkd returns files for the guest's /etc/systemd/network, such as 10-guestwire-eth0.network. They find the link by
// its MAC, and its name does not change. They need systemd 250. In a multipath route, networkd cannot express a next
// hop without a gateway, or with a gateway that no route reaches. The file leaves it out, and a warning names the
// route. Source: systemd.network(5).
func Networkd(g Guest) (Files, error) {
	nics, err := g.nics("networkd")
	if err != nil {
		return Files{}, err
	}
	files := Files{Contents: map[string]string{}}
	for _, n := range nics {
		files.Contents["10-guestwire-"+n.Name+".network"] = n.networkd()
	}
	files.Warnings = collect(nics)
	return files, nil
}

// unit is the text of one of systemd's files.
type unit struct{ strings.Builder }

func (u *unit) section(name string) {
	if u.Len() > 0 {
		u.WriteByte('\n')
	}
	u.WriteString("[" + name + "]\n")
}

// set writes a setting, unless the value is the type's zero.
func (u *unit) set(name string, value any) {
	text := fmt.Sprint(value)
	switch v := value.(type) {
	case bool:
		if text = "yes"; !v {
			return
		}
	case netip.Addr:
		if !v.IsValid() {
			return
		}
	case netip.Prefix:
		if !v.IsValid() {
			return
		}
	}
	if text != "" && text != "0" {
		fmt.Fprintf(u, "%s=%s\n", name, text)
	}
}

func (n *nic) networkd() string {
	var u unit
	u.section("Match")
	u.set("MACAddress", n.MAC)
	u.set("Type", "ether") // no bridge or VLAN of the guest, which can have the same MAC
	u.section("Link")
	u.set("MTUBytes", n.MTU)
	u.section("Network")
	u.set("DHCP", "no")
	u.set("IPv6AcceptRA", "no")
	if n.hasIPv6() {
		u.set("LinkLocalAddressing", "ipv6")
		u.set("IPv6LinkLocalAddressGenerationMode", "eui64")
	} else {
		u.set("LinkLocalAddressing", "no")
	}
	for _, s := range n.dns.Servers {
		u.set("DNS", s)
	}
	u.set("Domains", strings.Join(n.dns.Search, " "))
	for _, a := range n.ntp {
		u.set("NTP", a)
	}
	for _, a := range n.given() {
		u.section("Address")
		u.set("Address", a.Address)
		if a.Peer.IsValid() {
			u.set("Peer", a.Peer)
		}
		u.set("Broadcast", a.Broadcast)
		if !a.Broadcast.IsValid() && a.Address.Addr().Is4() && a.Address.Bits() < 31 {
			u.set("Broadcast", "no") // networkd would make one
		}
		u.set("Scope", a.Scope)
		if a.NoPrefixRoute {
			u.set("AddPrefixRoute", "no")
		}
		if a.Deprecated {
			u.WriteString("PreferredLifetime=0\n")
		}
	}
	for _, r := range n.was.Routes {
		n.addRoute(&u, r)
	}
	for _, r := range n.was.Rules {
		u.section("RoutingPolicyRule")
		u.set("From", r.Source)
		if !r.Source.IsValid() {
			family := "ipv4"
			if r.IPv6 {
				family = "ipv6"
			}
			u.set("Family", family)
		}
		fmt.Fprintf(&u, "Priority=%d\n", r.Priority)
		u.set("Table", r.Table)
	}
	for _, neighbour := range n.was.Neighbours {
		u.section("Neighbor")
		u.set("Address", neighbour.Address)
		u.set("LinkLayerAddress", neighbour.MAC)
	}
	return u.String()
}

func (n *nic) addRoute(u *unit, r cache.StaticRoute) {
	var hops []string
	for _, h := range r.Hops {
		if !h.Gateway.IsValid() || h.OnLink {
			n.warn("the route to %v of table %d is without one of its next hops: networkd knows no gateway on the link there", r.Destination, r.Table)
			continue
		}
		hops = append(hops, fmt.Sprintf("%v %d", h.Gateway, h.Weight))
	}
	if len(r.Hops) > 0 && len(hops) == 0 {
		n.warn("the route to %v of table %d is left out: it has no other next hop", r.Destination, r.Table)
		return
	}
	u.section("Route")
	u.set("Destination", r.Destination)
	u.set("Type", r.Type)
	u.set("Gateway", r.Gateway)
	u.set("GatewayOnLink", onLink(r))
	for _, h := range hops {
		u.set("MultiPathRoute", h)
	}
	if r.Table != tableMain {
		u.set("Table", r.Table)
	}
	u.set("Source", r.From)
	u.set("PreferredSource", r.Source)
	u.set("Metric", r.Metric)
	u.set("MTUBytes", r.MTU)
	u.set("Scope", r.Scope)
}
