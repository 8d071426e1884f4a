package compare

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Differences says what the operations of Steps are for, such as "eth0-tap is no port of eth0-br". Links that are gone,
// others or renamed come first: the rest can follow from that.
func Differences(now netstate.Snapshot, ops []netstate.Op) []cache.Finding {
	w := words{now: now, ops: ops, isSaid: map[cache.Finding]bool{}, routes: netstate.IndexRoutes(apart(now.Routes)), links: map[int]netstate.Link{},
		created: map[string]bool{}, taken: map[string]bool{}, deleted: map[netstate.LinkPrefix]bool{}, added: map[netstate.LinkPrefix]bool{},
		addressDel: map[netstate.LinkPrefix]bool{}, addressAdd: map[netstate.LinkPrefix]bool{}, filterDel: map[netstate.Place]bool{}, ingressAdd: map[int]bool{}}
	for _, l := range now.Links {
		w.links[l.Index] = l
	}
	for _, op := range ops {
		w.created[createdName(op)] = true
		switch o := op.(type) {
		case netstate.RouteDel:
			w.deleted[netstate.LinkPrefix{Link: o.Route.Link, Prefix: o.Route.Destination}] = true
		case netstate.AddressAdd:
			w.added[netstate.LinkPrefix{Link: o.Address.Link, Prefix: netip.PrefixFrom(o.Address.Prefix.Addr(), o.Address.Prefix.Addr().BitLen())}] = true
			w.addressAdd[o.Address.LinkPrefix()] = true
		case netstate.AddressDel:
			w.addressDel[o.Address.LinkPrefix()] = true
		case netstate.FilterDel:
			w.filterDel[o.Filter.Place()] = true
		case netstate.IngressAdd:
			w.ingressAdd[o.Index] = true
		}
	}
	delete(w.created, "")
	for _, t := range taken(now, ops) {
		w.addFinding(t)
		w.taken[t.Link] = true
	}
	for _, op := range ops {
		w.describe(op)
	}
	slices.SortStableFunc(w.said, func(a, b cache.Finding) int { return rank(a) - rank(b) })
	return w.said
}

func rank(d cache.Finding) int {
	switch d.Kind {
	case "name", "link-missing", "link-other":
		return 0
	}
	return 1
}

// words says of each operation what differs.
type words struct {
	now  netstate.Snapshot
	ops  []netstate.Op
	said []cache.Finding
	// isSaid has what said has, and routes the routes of now.
	isSaid map[cache.Finding]bool
	routes netstate.RouteIndex
	// deleted and added are the links, with the destinations of routes that are deleted, and with the addresses that
	// are added.
	deleted, added map[netstate.LinkPrefix]bool
	// created are the names of links that the operations create, taken those that others have. The others are what the
	// operations add and delete.
	created, taken         map[string]bool
	addressAdd, addressDel map[netstate.LinkPrefix]bool
	filterDel              map[netstate.Place]bool
	ingressAdd             map[int]bool
	links                  map[int]netstate.Link // of now
}

// add adds a difference once, as several operations can repair one. Its kind is one of those that
// phase1.DriftError lists.
func (w *words) add(kind, link, format string, args ...any) {
	w.addFinding(cache.Finding{Kind: kind, Link: link, What: fmt.Sprintf(format, args...)})
}

func (w *words) addFinding(d cache.Finding) {
	if !w.isSaid[d] {
		w.said = append(w.said, d)
		w.isSaid[d] = true
	}
}

// describe leaves out what follows from another sentence, such as the addresses of a link that is gone.
func (w *words) describe(op netstate.Op) {
	switch o := op.(type) {
	case netstate.TapAdd:
		w.describeMissing("tap", o.Link, &o.Tap)
	case netstate.TapReset:
		w.add("tap-offloads", o.Link, "tap %s leaves checksums and segments to a VMM that has ended", o.Link)
	case netstate.LinkAdd:
		w.describeMissing(o.Kind, o.Name, nil)
	case netstate.LinkDel:
		if !w.created[o.Link] {
			w.add("link-extra", o.Link, "%s is there and not of the wiring", o.Link)
		}
	case netstate.GroupDel:
		w.add("link-extra", "", "links of the group %d are there that are not of the wiring", o.Group)
	case netstate.LinkSet:
		w.describeLink(o)
	case netstate.BridgeSet:
		w.describeSettings("bridge", o.Index, o.Link, o.Settings)
	case netstate.BridgePortSet:
		w.describeSettings("bridge-port", o.Index, o.Link, o.Settings)
	case netstate.ConfSet:
		if _, there := w.links[o.Index]; there {
			w.add("sysctl", o.Link, "IPv4 %s of %s is %s, not %s", o.Name, o.Link, netstate.OnOff(!o.On), netstate.OnOff(o.On))
		}
	case netstate.SysctlSet:
		if have, ok := w.now.Sysctls[o.Path]; ok {
			if have != o.Value { // the same: of a link that is made again
				w.add("sysctl", "", "sysctl %s is %s, not %s", o.Path, have, o.Value)
			}
		} else if !slices.ContainsFunc(strings.Split(o.Path, "/"), func(part string) bool { return w.created[part] }) {
			w.add("sysctl", "", "sysctl %s is not %s", o.Path, o.Value)
		}
	case netstate.AddressAdd, netstate.AddressDel, netstate.RouteAdd, netstate.RouteDel, netstate.NeighbourAdd, netstate.NeighbourDel:
		w.describeNetwork(op)
	case netstate.IngressDel:
		isForeign := false
		for _, f := range netstate.FiltersOf(w.now.Filters, o.Index) {
			if f.Foreign != "" {
				isForeign = true
				w.add("filter-foreign", o.Link, "%s of %s has a filter of another program: %s", f.Side(), o.Link, f.Foreign)
			}
		}
		if !isForeign {
			w.add("filter-foreign", o.Link, "%s has a qdisc of another kind: %s", o.Link, netstate.QdiscKind(o.Clsact))
		}
	case netstate.IngressAdd:
		isDeleted := func(op netstate.Op) bool { d, is := op.(netstate.IngressDel); return is && d.Index == o.Index }
		if _, there := w.links[o.Index]; there && !w.anyOp(isDeleted) {
			w.add("qdisc-missing", o.Link, "%s qdisc of %s is gone", netstate.QdiscKind(o.Clsact), o.Link)
		}
	case netstate.ShapeSet:
		l, there := w.links[o.Index]
		switch {
		case !there:
		case l.Shape == netstate.Shape{}:
			w.add("shape", o.Link, "root qdisc %v of %s is gone", o.Shape, o.Link)
		case o.Shape == netstate.Shape{}:
			w.add("shape", o.Link, "root qdisc of %s is %v, which is not of the wiring", o.Link, l.Shape)
		default:
			w.add("shape", o.Link, "root qdisc of %s is %v, not %v", o.Link, l.Shape, o.Shape)
		}
	case netstate.FilterDel:
		w.add("filter-other", o.Link, "filter %d of %s is another", o.Filter.Priority, o.Link)
	case netstate.FilterAdd:
		if !w.filterDel[o.Filter.Place()] && !w.ingressAdd[o.Filter.Link] {
			w.add("filter-missing", o.Link, "filter %d of %s is gone", o.Filter.Priority, o.Link)
		}
	case netstate.TableSet:
		w.describeTable(o.Table)
	case netstate.TableChange:
		w.describeTable(o.Table)
	case netstate.TableDel:
		if !w.anyOp(func(op netstate.Op) bool {
			s, is := op.(netstate.TableSet)
			return is && s.Table.Family == o.Family && s.Table.Name == o.Name
		}) {
			w.add("table-extra", "", "%s is there and not of the wiring", o.Family.Describe(o.Name))
		}
	default:
		w.add("step", "", "not done: %s", o)
	}
}

func (w *words) anyOp(is func(netstate.Op) bool) bool { return slices.ContainsFunc(w.ops, is) }

// describeMissing is about a link that must be created, maybe in the place of another link.
func (w *words) describeMissing(kind, name string, tap *netstate.Tap) {
	now, there := w.now.Named(name)
	switch {
	case w.taken[name]: // said
	case !there:
		w.add("link-missing", name, "%s %s is gone", kind, name)
	case tap == nil || now.Tap == nil:
		w.add("link-other", name, "%s is not the %s of the wiring", name, kind)
	case !now.Ethernet: // TUNSETLINK of its owner
		w.add("link-other", name, "tap %s is no Ethernet link any more", name)
	case now.Tap.Owner.UID == 0 && !now.Tap.Owner.Root:
		w.add("tap-owner", name, "tap %s has no owner, not user %d, group %d", name, tap.Owner.UID, tap.Owner.GID)
	case now.Tap.Owner != tap.Owner:
		w.add("tap-owner", name, "tap %s is of user %d, group %d, not of %d, %d", name, now.Tap.Owner.UID, now.Tap.Owner.GID, tap.Owner.UID, tap.Owner.GID)
	case now.Tap.MultiQueue != tap.MultiQueue:
		w.add("tap-queues", name, "multi_queue of tap %s is %s, not %s", name, netstate.OnOff(now.Tap.MultiQueue), netstate.OnOff(tap.MultiQueue))
	default:
		w.add("link-other", name, "tap %s is another", name)
	}
}

// describeLink compares the properties that must be set with those that the link has.
func (w *words) describeLink(o netstate.LinkSet) {
	now, there := w.links[o.Want.Index]
	for _, p := range o.Properties() {
		switch {
		case !there:
		case p.Kind == "master":
			w.describeMaster(o.Want.Name, now, o)
		case p.Kind == "up" && (now.Up == o.Want.Up || now.Up && w.comesUp(o.Want.Index)): // it has to go down for a moment
		default:
			w.add(p.Kind, o.Want.Name, p.Text, o.Want.Name, p.Of(now), p.Of(o.Want))
		}
	}
}

func (w *words) comesUp(link int) bool {
	return w.anyOp(func(op netstate.Op) bool {
		o, is := op.(netstate.LinkSet)
		return is && o.Want.Index == link && !o.Have.Up && o.Want.Up
	})
}

func (w *words) describeMaster(name string, now netstate.Link, o netstate.LinkSet) {
	master, has := w.links[now.Master]
	switch {
	case !has || now.Master == 0:
		w.add("master", name, "%s is no port of %s", name, o.MasterName)
	case o.Want.Master == 0 && w.anyOp(func(op netstate.Op) bool {
		other, is := op.(netstate.LinkSet)
		return is && other.Want.Index == o.Want.Index && other.Have.Master != other.Want.Master && other.Want.Master != 0
	}): // that operation says so
	case o.Want.Master == 0:
		w.add("master", name, "%s is a port of %s", name, master.Name)
	default:
		w.add("master", name, "%s is a port of %s, not of %s", name, master.Name, o.MasterName)
	}
}

func (w *words) describeSettings(what string, index int, name string, want netstate.Settings) {
	now, there := w.links[index]
	have := now.Bridge
	if what == "bridge-port" {
		have = now.BridgePort
	}
	for _, setting := range want.Names() {
		if value, ok := have[setting]; there && ok && value != want[setting] {
			w.add(what+"-setting", name, "%s %s: %s is %d, not %d", strings.TrimPrefix(what, "bridge-"), name, setting, value, want[setting])
		}
	}
}

// describeNetwork is about addresses, routes and neighbours.
func (w *words) describeNetwork(op netstate.Op) {
	switch o := op.(type) {
	case netstate.AddressAdd:
		if w.hasLink(o.Address.Link) && !w.addressDel[o.Address.LinkPrefix()] {
			w.add("address-missing", o.Link, "address %v of %s is gone", o.Address.Prefix, o.Link)
		}
	case netstate.AddressDel:
		if w.addressAdd[o.Address.LinkPrefix()] {
			w.add("address-other", o.Link, "address %v of %s is not in its place, or another", o.Address.Prefix, o.Link)
		} else {
			w.add("address-extra", o.Link, "address %v of %s is not of the wiring", o.Address.Prefix, o.Link)
		}
	case netstate.RouteAdd:
		scaffold := w.deleted[netstate.LinkPrefix{Link: o.Route.Link, Prefix: o.Route.Destination}]
		if (o.Route.Link == 0 || w.hasLink(o.Route.Link)) && !scaffold {
			w.add("route-missing", o.Link, "route %s is gone", netstate.RouteText(o.Route, o.Link, o.Hops))
		}
	case netstate.RouteDel:
		ofAddress := o.Route.Table == netstate.TableLocal && o.Route.Type == netstate.RouteLocal && o.Route.Protocol == netstate.ProtocolKernel // a Snapshot does not hold it
		added := w.added[netstate.LinkPrefix{Link: o.Route.Link, Prefix: netip.PrefixFrom(o.Route.Destination.Addr(), o.Route.Destination.Addr().BitLen())}]
		if w.routes.Has(o.Route) || o.Route.Protocol == 0 || ofAddress && !added {
			w.add("route-extra", o.Link, "route %s is not of the wiring", netstate.RouteText(o.Route, o.Link, o.Hops))
		}
	case netstate.NeighbourAdd:
		if !o.Neighbour.Address.IsValid() {
			if l, there := w.links[o.Neighbour.Link]; there && l.Master != 0 {
				w.add("fdb-missing", o.Link, "forwarding entry %v of %s is gone", o.Neighbour.MAC, o.Link)
			}
		} else if w.hasLink(o.Neighbour.Link) {
			w.add("neighbour-missing", o.Link, "neighbour %v of %s is gone", o.Neighbour.Address, o.Link)
		}
	case netstate.NeighbourDel:
		if !o.Neighbour.Address.IsValid() {
			w.add("fdb-extra", o.Link, "forwarding entry %v of %s is not of the wiring", o.Neighbour.MAC, o.Link)
			return
		}
		w.add("neighbour-extra", o.Link, "neighbour %v of %s is not of the wiring", o.Neighbour.Address, o.Link)
	default:
		w.add("step", "", "not done: %s", op)
	}
}

func (w *words) hasLink(link int) bool {
	_, there := w.links[link]
	return there
}

func (w *words) describeTable(want firewall.Table) {
	for _, i := range w.now.Tables {
		if i.Family == want.Family && i.Name == want.Name {
			// There is no difference if the table is only set again because its link is created again.
			if d := i.Differences(want.Image()); len(d) > 0 {
				w.add("table-other", "", "%s: %s", i.Family.Describe(i.Name), strings.Join(d, "; "))
			}
			return
		}
	}
	w.add("table-missing", "", "%s is gone", want.Family.Describe(want.Name))
}
