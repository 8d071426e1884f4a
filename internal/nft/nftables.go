// Package nft sends tables of rules to the nftables of a network namespace, and reads what is there: rules, sets,
// counters, and what rules drop. It takes and returns the values of package firewall; rules are compared by the octets
// of their expressions. How links are made it does not know.
package nft

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Tables are the nftables of a network namespace, as a netlink socket in it.
type Tables struct {
	filter *netlink.Socket // nil: the kernel has no nfnetlink
	route  *netlink.Socket // which the links' names come from
	latest latestTables
	// sight is what the last Snapshot saw, and expected the sight of one that another process has made.
	sight    Sight
	expected expected
	// frees: a transaction has deleted something, which the kernel frees later.
	frees bool
}

// New returns the nftables of a namespace in which the two sockets were opened. The names of links come from the
// one of rtnetlink. Filter is nil if the kernel has no nfnetlink. The caller has to call Close, which closes filter.
func New(filter, route *netlink.Socket) *Tables { return &Tables{filter: filter, route: route} }

// Close closes the socket. It does not wait until the kernel has freed what transactions have deleted
// (nft_rcv_nl_event, net/netfilter/nf_tables_api.c).
func (n *Tables) Close() {
	switch {
	case n.filter == nil:
	case n.frees:
		netlink.InBackground(n.filter.Close)
	default:
		n.filter.Close()
	}
}

// IsFamily reports whether the family is one of nftables, and not of iptables.
func IsFamily(f firewall.Family) bool {
	_, is := families[f]
	return is
}

// families are the nftables families in use, as numbers (NFPROTO_*, linux/netfilter.h).
var families = map[firewall.Family]uint8{
	firewall.Inet:    unix.NFPROTO_INET,
	firewall.Bridge:  unix.NFPROTO_BRIDGE,
	firewall.NetDev:  unix.NFPROTO_NETDEV,
	firewall.Mangle4: unix.NFPROTO_IPV4,
	firewall.Mangle6: unix.NFPROTO_IPV6,
}

// Encode returns the messages of one transaction, with the messages that begin and end it
// (NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END).
func Encode(ops []netstate.Op) ([][]byte, error) {
	var w writer
	if err := w.writeTransaction(ops, 0); err != nil {
		return nil, err
	}
	return w.messages(), nil
}

// beginTransaction begins one that the kernel refuses in another generation (ERESTART); 0: it is of any generation.
func (w *writer) beginTransaction(generation uint32) {
	const nfnlBatchGenID = 1 // linux/netfilter/nfnetlink.h
	w.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		w.number32(nfnlBatchGenID, generation)
	}
}

// writeTransaction writes the messages of Encode. See beginTransaction.
func (w *writer) writeTransaction(ops []netstate.Op, generation uint32) error {
	w.reset()
	w.octets = slices.Grow(w.octets, sizeOf(ops))
	w.beginTransaction(generation)
	for i, op := range ops {
		switch o := op.(type) {
		case netstate.TableSet:
			w.writeTable(o.Table, !slices.ContainsFunc(ops[:i], func(op netstate.Op) bool {
				d, deletes := op.(netstate.TableDel)
				return deletes && d.Family == o.Table.Family
			}))
		case netstate.TableChange:
			w.writeChange(o.Change)
		case netstate.TableDel:
			w.deleteTable(o)
		case lastDel:
			w.deleteTable(o.TableDel)
			w.deleteEmpty(o.Family)
		default:
			return fmt.Errorf("no nftables message for %T", op)
		}
	}
	w.begin(unix.NFNL_MSG_BATCH_END, 0, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	return w.failed
}

// sizeOf is about the length of the messages of the operations, in octets.
func sizeOf(ops []netstate.Op) int {
	const table, chain, rule = 256, 128, 320
	size := 0
	for _, op := range ops {
		var added firewall.Table
		switch o := op.(type) {
		case netstate.TableSet:
			added = o.Table
		case netstate.TableChange:
			added = o.Change.Added
			added.Maps = slices.Concat(added.Maps, o.Change.Changed)
			for _, b := range o.Change.Boxes {
				added.Destinations = append(slices.Clip(added.Destinations), b.Deleted, b.Added)
			}
			size += chain * (len(o.Change.Flushed) + len(o.Change.GoneChains))
		}
		size += table
		for _, c := range added.Chains {
			size += chain + rule*len(c.Rules)
		}
		for _, m := range added.Maps {
			size += table + sizeofPortElement*m.Ports()
		}
		for _, d := range added.Destinations {
			size += table + sizeofBox*len(d.Boxes)
		}
	}
	return size
}

// beginTables begins a message of nftables (NFT_MSG_*).
func (w *writer) beginTables(kind, flags uint16, family firewall.Family) {
	w.begin(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, families[family], 0)
}

// writeTable writes the messages of a table: all sets, maps, flow tables and chains before all rules, as a rule can
// name each of them. New says that the table does not replace another one of the transaction.
func (w *writer) writeTable(t firewall.Table, new bool) {
	w.ahead = new && !t.Family.Shared() // an empty one that a killed call leaves would be nobody's
	w.beginTables(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t.Family)
	w.text(unix.NFTA_TABLE_NAME, t.Family.TableOf(t.Name))
	if !t.Family.Shared() { // see wake
		w.number32(unix.NFTA_TABLE_FLAGS, 0)
	}
	w.writeContent(t, nil, func(string) bool { return new })
}

// writeChange writes the messages of a change. A chain or a set is deleted when no rule names it any more.
func (w *writer) writeChange(c firewall.Change) {
	t := c.Added
	each := func(message, nameOfTable, nameOfObject uint16, names []string) {
		for _, name := range names {
			w.beginTables(message, 0, t.Family)
			w.text(nameOfTable, t.Family.TableOf(t.Name))
			w.text(nameOfObject, name)
		}
	}
	each(unix.NFT_MSG_DELRULE, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, c.Flushed) // all rules
	for _, m := range c.Changed {
		each(unix.NFT_MSG_DELSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET, []string{m.Name}) // all elements
		w.writePorts(t.Family, t.Name, m, 0)
	}
	for _, b := range c.Boxes {
		w.writeBoxes(unix.NFT_MSG_DELSETELEM, t.Family, t.Name, b.Deleted, 0)
		w.writeBoxes(unix.NFT_MSG_NEWSETELEM, t.Family, t.Name, b.Added, 0)
	}
	each(unix.NFT_MSG_DELSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, c.Replaced)
	w.writeContent(t, c.Flushed, func(set string) bool { return !slices.Contains(c.Replaced, set) })
	each(unix.NFT_MSG_DELCHAIN, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, c.GoneChains)
	each(unix.NFT_MSG_DELSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, slices.Concat(c.GoneSets, c.GoneMaps))
	each(unix.NFT_MSG_DELFLOWTABLE, nftables.NFTA_FLOWTABLE_TABLE, nftables.NFTA_FLOWTABLE_NAME, c.GoneFlows)
}

// writeContent writes what is in a table whose chains have those names already. New reports whether there is no set
// with a name before the transaction.
func (w *writer) writeContent(t firewall.Table, have []string, new func(set string) bool) {
	for i, s := range t.Sets {
		w.ahead = new(s.Name)
		w.beginTables(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t.Family)
		w.writeSet(t.Name, s, uint32(i+1))
		w.writeElements(unix.NFT_MSG_NEWSETELEM, t.Family, t.Name, s.Name, uint32(i+1), s.Elements)
	}
	for i, m := range t.Maps {
		w.ahead = new(m.Name)
		w.writePortMap(t.Family, t.Name, m, uint32(len(t.Sets)+i+1))
	}
	for i, d := range t.Destinations {
		w.ahead = new(d.Name)
		w.writeDestinations(t.Family, t.Name, d, uint32(len(t.Sets)+len(t.Maps)+i+1))
	}
	w.ahead = false
	for _, f := range t.Flows {
		w.beginTables(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, t.Family)
		w.writeFlowTable(t.Name, f)
	}
	for _, c := range t.Chains {
		if !slices.Contains(have, c.Name) {
			w.beginTables(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t.Family)
			w.writeChain(t.Family.TableOf(t.Name), c)
		}
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			w.beginTables(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family)
			w.writeRule(t.Family.TableOf(t.Name), c.Name, r)
		}
	}
}

// Read reads the nftables tables with the name, of all families in use, and the chains with the name in tables
// that others share. Rules that equal a rule of the wanted tables get that rule's text. Unless whole is set, Read
// reads no more than the tables' families.
func (n *Tables) Read(s *netstate.Snapshot, names netstate.Names, wanted func() []firewall.Table, whole bool) error {
	name, awaited := names.Table, n.expected
	n.expected, n.sight = expected{}, Sight{}
	if n.filter == nil {
		s.NoNFTables = true
		return nil
	}
	if n.latest.sent {
		known, err := n.knowTables(s, names)
		if known || err != nil {
			return err
		}
	}
	generation, err := n.generation()
	if netlink.Answers(err, unix.EINVAL) { // nfnetlink without nf_tables (nfnetlink_rcv_msg in the kernel)
		s.NoNFTables = true
		return nil
	}
	if err != nil {
		return err
	}
	found := map[firewall.Family]firewall.Image{}
	list := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, netlink.Netfilter(unix.NFPROTO_UNSPEC))
	err = n.filter.Dump(list, func() { clear(found) }, func(m []byte) error {
		image, err := parseTable(m)
		if image.Family != "" && image.Name == image.Family.TableOf(name) {
			found[image.Family] = image
		}
		return err
	})
	if err == nil {
		err = n.readShared(found, name)
	}
	if err != nil {
		return err
	}
	if !whole {
		for _, family := range slices.Sorted(maps.Keys(found)) {
			s.Tables = append(s.Tables, firewall.Image{Family: family, Name: name})
		}
		return nil
	}
	seen := Sight{generation, linksOf(s, names), sizesOf(slices.Collect(maps.Values(found)))}
	switch expected := awaited.is(seen); {
	case expected && awaited.stay:
		s.TablesStay, n.sight = true, seen
		return nil
	case expected:
		s.Tables = awaited.images()
	default:
		if err := n.readFound(s, found, wanted()); err != nil {
			return err
		}
	}
	n.latest = latestTables{read: true, name: name, generation: generation, images: s.Tables}
	n.see(s, names, generation)
	return nil
}

// readFound reads what the tables hold.
func (n *Tables) readFound(s *netstate.Snapshot, found map[firewall.Family]firewall.Image, wanted []firewall.Table) (err error) {
	var resolved []firewall.Table
	for _, t := range wanted {
		resolved = append(resolved, t.Resolve(func(name string) int {
			l, _ := s.Named(name)
			return l.Index
		}))
	}
	for _, family := range slices.Sorted(maps.Keys(found)) {
		image := found[family]
		if !family.Shared() { // whose chain is read
			if err := n.readContent(&image, wanted); err != nil {
				return err
			}
		}
		if image, err = n.readRulesOf(image, resolved); err != nil {
			return err
		}
		s.Tables = append(s.Tables, image)
	}
	return nil
}

// readContent reads what a table holds but the rules.
func (n *Tables) readContent(image *firewall.Image, wanted []firewall.Table) (err error) {
	if err := n.readChains(image); err != nil {
		return err
	}
	if image.Sets, err = n.readDeclarations(image, unix.NFT_MSG_GETSET, parseSet); err != nil {
		return err
	}
	if err := n.readHeld(image, wanted); err != nil {
		return err
	}
	image.Flows, err = n.readDeclarations(image, unix.NFT_MSG_GETFLOWTABLE, parseFlowTable)
	return err
}

// readDeclarations reads the sets and maps of a table, or its flow tables, without their elements. The question is a
// number of nftables (NFT_MSG_*). What is left of Others are the objects for which nothing asks, such as counters.
func (n *Tables) readDeclarations(image *firewall.Image, question uint16, parse func([]byte) (firewall.Declaration, string, error)) (list []firewall.Declaration, err error) {
	if image.Others == 0 {
		return nil, nil
	}
	r := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|question, unix.NLM_F_DUMP, netlink.Netfilter(families[image.Family]))
	err = n.filter.Dump(r, func() { list = nil }, func(m []byte) error {
		declaration, table, err := parse(m)
		if table == image.Name {
			list = append(list, declaration)
		}
		return err
	})
	image.Others -= len(list)
	slices.SortFunc(list, func(a, b firewall.Declaration) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// readRulesOf returns the image of a table with its rules. Most often the table is as wanted; then no rule needs a
// text.
func (n *Tables) readRulesOf(image firewall.Image, wanted []firewall.Table) (firewall.Image, error) {
	at := slices.IndexFunc(wanted, func(t firewall.Table) bool { return t.Family == image.Family })
	if at >= 0 && reflect.DeepEqual(image, wanted[at].Outline()) {
		holds, err := n.holdsRules(wanted[at])
		if err != nil || holds {
			return wanted[at].Held(), err
		}
	}
	return image, n.readChainRules(&image, wanted)
}

// parseTable parses struct nfgenmsg and the attributes of a table (linux/netfilter/nf_tables.h,
// NFTA_TABLE_*). Others is the number of all objects in the table, its chains and sets included. Family is empty for a
// family that is not in use.
func parseTable(m []byte) (image firewall.Image, err error) {
	err = netlink.EachAttribute(m, netlink.SizeofNetfilter, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_TABLE_NAME:
			image.Name = unix.ByteSliceToString(v)
		case unix.NFTA_TABLE_FLAGS:
			image.Flags = netlink.BE32(v)
		case unix.NFTA_TABLE_USE:
			image.Others = int(netlink.BE32(v))
		}
		return nil
	})
	for family, number := range families {
		if err == nil && m[0] == number {
			image.Family = family
		}
	}
	return image, err
}
