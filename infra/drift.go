package infra

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/firewall"
)

// Drift is a wiring that is not as wanted.
type Drift struct {
	// Differs says in words what is otherwise: "eth0-tap is no port of eth0-br".
	Differs []string
	// Steps repair it.
	Steps []Op
}

// Drift compares the namespace with the wiring. It is nil if nothing differs. The error is ErrNoNIC
// if the NIC has gone.
func (p *Plan) Drift(now Snapshot) (*Drift, error) {
	ops, err := p.Steps(now)
	if err != nil || len(ops) == 0 {
		return nil, err
	}
	w := words{now: now, ops: ops}
	for _, op := range ops {
		w.say(op)
	}
	return &Drift{Differs: w.said, Steps: ops}, nil
}

// words tells of each operation what it is for.
type words struct {
	now  Snapshot
	ops  []Op
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
func (w *words) say(op Op) {
	switch o := op.(type) {
	case TapAdd:
		w.missing("tap", o.Link, &o.Tap)
	case LinkAdd:
		w.missing(o.Kind, o.Name, nil)
	case LinkDel:
		if !w.has(func(op Op) bool { return created(op) == o.Link }) {
			w.add("%s is there and not of the wiring", o.Link)
		}
	case GroupDel:
		w.add("links of the group %d are there that are not of the wiring", o.Group)
	case LinkSet:
		w.link(o)
	case BridgeSet:
		w.settings("bridge", o.Index, o.Link, o.Settings)
	case PortSet:
		w.settings("port", o.Index, o.Link, o.Settings)
	case ConfSet:
		if _, there := w.now.link(o.Index); there {
			w.add("IPv4 %s of %s is %s, not %s", o.Name, o.Link, onOff(!o.On), onOff(o.On))
		}
	case SysctlSet:
		if have, ok := w.now.Sysctls[o.Path]; ok {
			w.add("sysctl %s is %s, not %s", o.Path, have, o.Value)
		} else if !w.has(func(op Op) bool {
			name := created(op)
			return name != "" && strings.Contains(o.Path, "/conf/"+name+"/")
		}) {
			w.add("sysctl %s is not %s", o.Path, o.Value)
		}
	case AddressAdd, AddressDel, RouteAdd, RouteDel, NeighbourAdd, NeighbourDel:
		w.network(op)
	case IngressDel:
		for _, f := range filtersOf(w.now.Filters, o.Index) {
			if f.Foreign != "" {
				w.add("ingress of %s has a filter of somebody: %s", o.Link, f.Foreign)
			}
		}
	case IngressAdd:
		if _, there := w.now.link(o.Index); there && !w.has(func(op Op) bool { return op == Op(IngressDel(o)) }) {
			w.add("ingress qdisc of %s is gone", o.Link)
		}
	case FilterDel:
		w.add("filter %d of %s is another", o.Filter.Priority, o.Link)
	case FilterAdd:
		gone := w.has(func(op Op) bool {
			d, is := op.(FilterDel)
			added, isAdd := op.(IngressAdd)
			return is && d.Filter.beside(o.Filter) || isAdd && added.Index == o.Filter.Link
		})
		if !gone {
			w.add("filter %d of %s is gone", o.Filter.Priority, o.Link)
		}
	case TableSet:
		w.table(o.Table)
	case TableDel:
		if !w.has(func(op Op) bool {
			s, is := op.(TableSet)
			return is && s.Table.Family == o.Family && s.Table.Name == o.Name
		}) {
			w.add("%s is there and not of the wiring", tableText(o.Family, o.Name))
		}
	}
}

func (w *words) has(is func(Op) bool) bool { return slices.ContainsFunc(w.ops, is) }

// created is the name of a link that the operation makes.
func created(op Op) string {
	switch o := op.(type) {
	case TapAdd:
		return o.Link
	case LinkAdd:
		return o.Name
	}
	return ""
}

// missing is about a link that is to be made, maybe in the place of another.
func (w *words) missing(kind, name string, tap *Tap) {
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
func (w *words) link(o LinkSet) {
	now, there := w.now.link(o.Index)
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
		w.add("addrgenmode of %s is %s, not %s", name, addrGenText(now.AddrGen), addrGenText(*o.AddrGen))
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
	return w.has(func(op Op) bool {
		o, is := op.(LinkSet)
		return is && o.Index == link && o.Up != nil && *o.Up
	})
}

func (w *words) master(name string, now Link, o LinkSet) {
	master, has := w.now.link(now.Master)
	switch {
	case !has || now.Master == 0:
		w.add("%s is no port of %s", name, o.MasterName)
	case *o.Master == 0 && w.has(func(op Op) bool {
		other, is := op.(LinkSet)
		return is && other.Index == o.Index && other.MasterName != ""
	}): // it says so
	case *o.Master == 0:
		w.add("%s is a port of %s", name, master.Name)
	default:
		w.add("%s is a port of %s, not of %s", name, master.Name, o.MasterName)
	}
}

func (w *words) settings(what string, index int, name string, want Settings) {
	now, there := w.now.link(index)
	have := now.Bridge
	if what == "port" {
		have = now.Port
	}
	for _, setting := range want.Names() {
		if value, ok := have[setting]; there && ok && value != want[setting] {
			w.add("%s %s: %s is %d, not %d", what, name, setting, value, want[setting])
		}
	}
}

// network is about what hangs on links.
func (w *words) network(op Op) {
	switch o := op.(type) {
	case AddressAdd:
		if w.there(o.Address.Link) && !w.has(func(op Op) bool {
			d, is := op.(AddressDel)
			return is && d.Address.Link == o.Address.Link && d.Address.Prefix == o.Address.Prefix
		}) {
			w.add("address %v of %s is gone", o.Address.Prefix, o.Link)
		}
	case AddressDel:
		if w.has(func(op Op) bool {
			a, is := op.(AddressAdd)
			return is && a.Address.Link == o.Address.Link && a.Address.Prefix == o.Address.Prefix
		}) {
			w.add("address %v of %s is not in its place, or another", o.Address.Prefix, o.Link)
		} else {
			w.add("address %v of %s is somebody's", o.Address.Prefix, o.Link)
		}
	case RouteAdd:
		scaffold := w.has(func(op Op) bool {
			d, is := op.(RouteDel)
			return is && d.Route.Destination == o.Route.Destination && d.Route.Link == o.Route.Link
		})
		if (o.Route.Link == 0 || w.there(o.Route.Link)) && !scaffold {
			w.add("route %s is gone", routeText(o.Route, o.Link, o.Hops))
		}
	case RouteDel:
		if slices.ContainsFunc(w.now.Routes, o.Route.same) {
			w.add("route %s is somebody's", routeText(o.Route, o.Link, o.Hops))
		}
	case NeighbourAdd:
		if !o.Neighbour.Address.IsValid() {
			if l, there := w.now.link(o.Neighbour.Link); there && l.Master != 0 {
				w.add("forwarding entry %v of %s is gone", o.Neighbour.MAC, o.Link)
			}
		} else if w.there(o.Neighbour.Link) {
			w.add("neighbour %v of %s is gone", o.Neighbour.Address, o.Link)
		}
	case NeighbourDel:
		if !o.Neighbour.Address.IsValid() {
			w.add("forwarding entry %v of %s is somebody's", o.Neighbour.MAC, o.Link)
			return
		}
		w.add("neighbour %v of %s is somebody's", o.Neighbour.Address, o.Link)
	}
}

func (w *words) there(link int) bool {
	_, there := w.now.link(link)
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
