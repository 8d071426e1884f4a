package compare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Differences says in words what the operations of Steps are for, such as "eth0-tap is no port of eth0-br".
func Differences(now netstate.Snapshot, ops []netstate.Op) []string {
	w := words{now: now, ops: ops}
	for _, op := range ops {
		w.say(op)
	}
	return w.said
}

// words tells of each operation what it is for.
type words struct {
	now  netstate.Snapshot
	ops  []netstate.Op
	said []string
}

// add says a thing once: several operations can be for the same.
func (w *words) add(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(w.said, text) {
		w.said = append(w.said, text)
	}
}

// say leaves out what only follows from something that is said, such as the addresses of a link that
// has gone.
func (w *words) say(op netstate.Op) {
	switch o := op.(type) {
	case netstate.TapAdd:
		w.missing("tap", o.Link, &o.Tap)
	case netstate.LinkAdd:
		w.missing(o.Kind, o.Name, nil)
	case netstate.LinkDel:
		if !w.has(func(op netstate.Op) bool { return created(op) == o.Link }) {
			w.add("%s is there and not of the wiring", o.Link)
		}
	case netstate.GroupDel:
		w.add("links of the group %d are there that are not of the wiring", o.Group)
	case netstate.LinkSet:
		w.link(o)
	case netstate.BridgeSet:
		w.settings("bridge", o.Index, o.Link, o.Settings)
	case netstate.BridgePortSet:
		w.settings("port", o.Index, o.Link, o.Settings)
	case netstate.ConfSet:
		if _, there := w.now.Link(o.Index); there {
			w.add("IPv4 %s of %s is %s, not %s", o.Name, o.Link, onOff(!o.On), onOff(o.On))
		}
	case netstate.SysctlSet:
		if have, ok := w.now.Sysctls[o.Path]; ok {
			w.add("sysctl %s is %s, not %s", o.Path, have, o.Value)
		} else if !w.has(func(op netstate.Op) bool {
			name := created(op)
			return name != "" && strings.Contains(o.Path, "/conf/"+name+"/")
		}) {
			w.add("sysctl %s is not %s", o.Path, o.Value)
		}
	case netstate.AddressAdd, netstate.AddressDel, netstate.RouteAdd, netstate.RouteDel, netstate.NeighbourAdd, netstate.NeighbourDel:
		w.network(op)
	case netstate.IngressDel:
		for _, f := range netstate.FiltersOf(w.now.Filters, o.Index) {
			if f.Foreign != "" {
				w.add("ingress of %s has a filter of somebody: %s", o.Link, f.Foreign)
			}
		}
	case netstate.IngressAdd:
		if _, there := w.now.Link(o.Index); there && !w.has(func(op netstate.Op) bool { return op == netstate.Op(netstate.IngressDel(o)) }) {
			w.add("ingress qdisc of %s is gone", o.Link)
		}
	case netstate.FilterDel:
		w.add("filter %d of %s is another", o.Filter.Priority, o.Link)
	case netstate.FilterAdd:
		gone := w.has(func(op netstate.Op) bool {
			d, is := op.(netstate.FilterDel)
			added, isAdd := op.(netstate.IngressAdd)
			return is && d.Filter.Beside(o.Filter) || isAdd && added.Index == o.Filter.Link
		})
		if !gone {
			w.add("filter %d of %s is gone", o.Filter.Priority, o.Link)
		}
	case netstate.TableSet:
		w.table(o.Table)
	case netstate.TableDel:
		if !w.has(func(op netstate.Op) bool {
			s, is := op.(netstate.TableSet)
			return is && s.Table.Family == o.Family && s.Table.Name == o.Name
		}) {
			w.add("%s is there and not of the wiring", tableText(o.Family, o.Name))
		}
	default:
		w.add("not done: %s", o)
	}
}

func (w *words) has(is func(netstate.Op) bool) bool { return slices.ContainsFunc(w.ops, is) }

// created is the name of a link that the operation makes.
func created(op netstate.Op) string {
	switch o := op.(type) {
	case netstate.TapAdd:
		return o.Link
	case netstate.LinkAdd:
		return o.Name
	}
	return ""
}

// missing is about a link that is to be made, maybe in the place of another.
func (w *words) missing(kind, name string, tap *netstate.Tap) {
	now, there := w.now.Named(name)
	switch {
	case !there:
		w.add("%s %s is gone", kind, name)
	case tap == nil || now.Tap == nil:
		w.add("%s is no %s of ours", name, kind)
	case now.Tap.Owner != tap.Owner:
		w.add("tap %s is of user %d, group %d, not of %d, %d", name, now.Tap.Owner.UID, now.Tap.Owner.GID, tap.Owner.UID, tap.Owner.GID)
	case now.Tap.MultiQueue != tap.MultiQueue:
		w.add("multi_queue of tap %s is %s, not %s", name, onOff(now.Tap.MultiQueue), onOff(tap.MultiQueue))
	default:
		w.add("tap %s is another", name)
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// link compares what is to be set with what is.
func (w *words) link(o netstate.LinkSet) {
	now, there := w.now.Link(o.Index)
	if !there {
		return
	}
	name := o.Link
	if o.Name != "" {
		w.add("%s is called %s", o.Name, now.Name)
		name = o.Name
	}
	if !o.MAC.IsZero() {
		w.add("MAC of %s is %v, not %v", name, now.MAC, o.MAC)
	}
	if o.MTU != 0 {
		w.add("MTU of %s is %d, not %d", name, now.MTU, o.MTU)
	}
	if o.Group != 0 {
		w.add("group of %s is %d, not %d", name, now.Group, o.Group)
	}
	if o.Alias != "" {
		w.add("alias of %s is %q, not %q", name, now.Alias, o.Alias)
	}
	if o.AddrGen != nil {
		w.add("addrgenmode of %s is %s, not %s", name, netstate.AddrGenText(now.AddrGen), netstate.AddrGenText(*o.AddrGen))
	}
	if o.NoARP != nil {
		w.add("ARP of %s is %s, not %s", name, onOff(*o.NoARP), onOff(!*o.NoARP))
	}
	if o.AllMulticast != nil {
		w.add("allmulticast of %s is %s, not %s", name, onOff(!*o.AllMulticast), onOff(*o.AllMulticast))
	}
	if o.Master != nil {
		w.master(name, now, o)
	}
	// What is up may have to go down for a moment.
	if o.Up != nil && now.Up != *o.Up && !(now.Up && w.rises(o.Index)) {
		w.add("%s is %s", name, map[bool]string{true: "up", false: "down"}[now.Up])
	}
}

func (w *words) rises(link int) bool {
	return w.has(func(op netstate.Op) bool {
		o, is := op.(netstate.LinkSet)
		return is && o.Index == link && o.Up != nil && *o.Up
	})
}

func (w *words) master(name string, now netstate.Link, o netstate.LinkSet) {
	master, has := w.now.Link(now.Master)
	switch {
	case !has || now.Master == 0:
		w.add("%s is no port of %s", name, o.MasterName)
	case *o.Master == 0 && w.has(func(op netstate.Op) bool {
		other, is := op.(netstate.LinkSet)
		return is && other.Index == o.Index && other.MasterName != ""
	}): // it says so
	case *o.Master == 0:
		w.add("%s is a port of %s", name, master.Name)
	default:
		w.add("%s is a port of %s, not of %s", name, master.Name, o.MasterName)
	}
}

func (w *words) settings(what string, index int, name string, want netstate.Settings) {
	now, there := w.now.Link(index)
	have := now.Bridge
	if what == "port" {
		have = now.BridgePort
	}
	for _, setting := range want.Names() {
		if value, ok := have[setting]; there && ok && value != want[setting] {
			w.add("%s %s: %s is %d, not %d", what, name, setting, value, want[setting])
		}
	}
}

// network is about what hangs on links.
func (w *words) network(op netstate.Op) {
	switch o := op.(type) {
	case netstate.AddressAdd:
		if w.there(o.Address.Link) && !w.has(func(op netstate.Op) bool {
			d, is := op.(netstate.AddressDel)
			return is && d.Address.Link == o.Address.Link && d.Address.Prefix == o.Address.Prefix
		}) {
			w.add("address %v of %s is gone", o.Address.Prefix, o.Link)
		}
	case netstate.AddressDel:
		if w.has(func(op netstate.Op) bool {
			a, is := op.(netstate.AddressAdd)
			return is && a.Address.Link == o.Address.Link && a.Address.Prefix == o.Address.Prefix
		}) {
			w.add("address %v of %s is not in its place, or another", o.Address.Prefix, o.Link)
		} else {
			w.add("address %v of %s is somebody's", o.Address.Prefix, o.Link)
		}
	case netstate.RouteAdd:
		scaffold := w.has(func(op netstate.Op) bool {
			d, is := op.(netstate.RouteDel)
			return is && d.Route.Destination == o.Route.Destination && d.Route.Link == o.Route.Link
		})
		if (o.Route.Link == 0 || w.there(o.Route.Link)) && !scaffold {
			w.add("route %s is gone", netstate.RouteText(o.Route, o.Link, o.Hops))
		}
	case netstate.RouteDel:
		if slices.ContainsFunc(w.now.Routes, o.Route.Same) {
			w.add("route %s is somebody's", netstate.RouteText(o.Route, o.Link, o.Hops))
		}
	case netstate.NeighbourAdd:
		if !o.Neighbour.Address.IsValid() {
			if l, there := w.now.Link(o.Neighbour.Link); there && l.Master != 0 {
				w.add("forwarding entry %v of %s is gone", o.Neighbour.MAC, o.Link)
			}
		} else if w.there(o.Neighbour.Link) {
			w.add("neighbour %v of %s is gone", o.Neighbour.Address, o.Link)
		}
	case netstate.NeighbourDel:
		if !o.Neighbour.Address.IsValid() {
			w.add("forwarding entry %v of %s is somebody's", o.Neighbour.MAC, o.Link)
			return
		}
		w.add("neighbour %v of %s is somebody's", o.Neighbour.Address, o.Link)
	}
}

func (w *words) there(link int) bool {
	_, there := w.now.Link(link)
	return there
}

func (w *words) table(want firewall.Table) {
	for _, i := range w.now.Tables {
		if i.Family == want.Family && i.Name == want.Name {
			// None if it is made anew for the sake of its link.
			if d := i.Differences(want.Image()); len(d) > 0 {
				w.add("%s: %s", tableText(i.Family, i.Name), strings.Join(d, "; "))
			}
			return
		}
	}
	w.add("%s is gone", tableText(want.Family, want.Name))
}

func tableText(f firewall.Family, name string) string {
	if f.IPTables() != 0 {
		return fmt.Sprintf("%s of %s", name, f)
	}
	return fmt.Sprintf("nftables table %s %s", f, name)
}
