package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Encode returns the messages of one transaction, with the messages that begin and end it
// (NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END).
func Encode(ops []netstate.Op) ([][]byte, error) {
	var w writer
	if err := w.writeTransaction(ops, 0); err != nil {
		return nil, err
	}
	return w.messages(), nil
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
			size += table + sizeofPort*m.Ports()
		}
		for _, d := range added.Destinations {
			size += table + sizeofBox*len(d.Boxes)
		}
	}
	return size
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

// presentNames returns the operations with the present names of chains' links that have not got their later names yet.
// renamed reports whether there is such a chain. taken says that another link has one of the later names.
//
// Before Linux 6.16 the kernel binds a chain to a link, and refuses a name that no link has (ENOENT). The chain then
// goes with the link, whatever the link's name becomes. Since Linux 6.16 the kernel binds a chain to a name, also to
// one that no link has.
func (n *Tables) presentNames(ops []netstate.Op) (present []netstate.Op, renamed, taken bool, err error) {
	present = ops
	for i, op := range ops {
		set, is := op.(netstate.TableSet)
		if !is {
			continue
		}
		for j, c := range set.Table.Chains {
			if c.Link == 0 {
				continue
			}
			name, err := n.route.LinkName(c.Link)
			if err != nil {
				return nil, false, false, fmt.Errorf("chain %s: link %d: %w", c.Name, c.Link, err)
			}
			if name == c.Device {
				continue
			}
			if !renamed {
				present, renamed = slices.Clone(ops), true
			}
			if !taken {
				if taken, err = n.route.HasLink(c.Device); err != nil {
					return nil, false, false, fmt.Errorf("chain %s: link %s: %w", c.Name, c.Device, err)
				}
			}
			set.Table.Chains = slices.Clone(set.Table.Chains)
			set.Table.Chains[j].Device = name
			present[i] = set
		}
	}
	return present, renamed, taken, nil
}

// Send carries the operations out in one transaction. If a replaced table keeps its elements, the kernel
// accepts the transaction only in the generation in which they were read: otherwise a pin that came meanwhile would be
// lost. The last try is for any generation, so that a program that keeps pinning cannot keep a table from being set.
func (n *Tables) Send(ctx context.Context, ops []netstate.Op) ([]netlink.Failure, error) {
	if err := n.wake(ops); err != nil {
		return nil, err
	}
	for left := pinTries; ; left-- {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		kept, generation, err := n.keepElements(ops)
		if err != nil {
			return nil, err
		}
		if left == 0 {
			generation = 0
		}
		failures, err := n.sendKept(kept, generation)
		if err != nil || !slices.ContainsFunc(failures, func(f netlink.Failure) bool { return netlink.Answers(f.Err, unix.ERESTART) }) {
			return failures, err
		}
	}
}

// sendKept sends the transaction. Chains of links that are yet to be renamed are sent with the later names, if kernels
// of this release bind names. If the kernel refuses one of these chains, it binds chains to links, and gets the present
// names. A question to the kernel beforehand would cost as much as the transaction, and so does a refusal. A kernel
// that binds names in spite of an older release gets the chain with the present name, and loses it when the link is
// renamed: the next comparison repairs that.
func (n *Tables) sendKept(ops []netstate.Op, generation uint32) ([]netlink.Failure, error) {
	present, renamed, taken, err := n.presentNames(ops)
	if err != nil {
		return nil, err
	}
	if taken || !BindsNames() { // taken: the kernel would bind the chain to the other link
		failures, _, err := n.transact(present, generation)
		n.latest.commit(present, err == nil && len(failures) == 0 && !renamed)
		return failures, err
	}
	failures, refused, err := n.transact(ops, generation)
	if err == nil && renamed && refused {
		failures, _, err = n.transact(present, generation)
		n.latest = latestTables{}
	}
	n.latest.commit(ops, err == nil && len(failures) == 0)
	return failures, err
}

// BindsNames reports whether kernels of this release, since Linux 6.16, bind a chain to the name of a link, and not to
// the link.
var BindsNames = sync.OnceValue(func() bool {
	var name unix.Utsname
	var major, minor int
	if unix.Uname(&name) != nil {
		return true
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return err != nil || major > 6 || major == 6 && minor >= 16
})

// transact sends one transaction. See beginTransaction. noLink says that the kernel refused a chain because a name in
// it is unknown.
func (n *Tables) transact(ops []netstate.Op, generation uint32) (failures []netlink.Failure, noLink bool, err error) {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	if err := w.writeTransaction(ops, generation); err != nil {
		return nil, false, err
	}
	n.sight = Sight{}
	n.frees = n.frees || slices.ContainsFunc(ops, func(op netstate.Op) bool {
		_, adds := op.(netstate.TableSet)
		return !adds
	})
	messages, failures, err := n.sendTransaction(w)
	for i, f := range failures {
		kind := netlink.U16(messages[f.Message][4:])
		noLink = noLink || kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN && errors.Is(f.Err, unix.ENOENT)
		// One table is many messages, so the number of the message is not the number of the operation.
		failures[i].Message = 0
	}
	return failures, noLink, err
}

// sendTransaction sends what w has, and returns the messages to which the failures belong. A transaction that the
// kernel does not take from this process is sent in several ones, see split.
func (n *Tables) sendTransaction(w *writer) (messages [][]byte, failures []netlink.Failure, err error) {
	room, err := n.filter.Room(len(w.octets))
	if err != nil {
		return nil, nil, err
	}
	if len(w.octets) <= room {
		messages = w.messages()
		first := n.filter.Number(messages, len(messages)-2) // the last message ends the transaction
		failures, err = n.filter.SendBatch(w.octets, first, len(messages))
		return messages, failures, err
	}
	transactions := w.split(room)
	if transactions == nil {
		return nil, nil, netlink.TooLong(len(w.octets))
	}
	for _, messages = range transactions {
		if failures, err = n.filter.Send(messages, len(messages)-2); err != nil || len(failures) > 0 {
			break
		}
	}
	return messages, failures, err
}

// lastDel deletes a chain of a shared table, and the table, as nothing else is in it.
type lastDel struct{ netstate.TableDel }

// findLast makes a lastDel of each deletion that leaves a shared table empty. The generation is that in which it
// looked; 0: it did not have to.
func (n *Tables) findLast(ops []netstate.Op) (generation uint32, err error) {
	for i, op := range ops {
		d, is := op.(netstate.TableDel)
		if !is || !d.Family.Shared() || slices.ContainsFunc(ops[i+1:], func(op netstate.Op) bool {
			s, is := op.(netstate.TableSet)
			return is && s.Table.Family == d.Family && s.Table.Name == d.Name
		}) {
			continue
		}
		if generation == 0 {
			if generation, err = n.generation(); err != nil {
				return 0, err
			}
		}
		table, err := n.readTable(d.Family)
		if err != nil {
			return 0, err
		}
		if table.Others == 1 {
			ops[i] = lastDel{d}
		}
	}
	return generation, nil
}

// keepElements returns the operations with the elements of each table that is replaced, and the generation in which
// they were read; 0: no table is. Otherwise a guest would lose the address that its table has learned, and its pins,
// when the table is repaired. It also finds out which deletions are lastDel, in the same generation.
func (n *Tables) keepElements(ops []netstate.Op) (kept []netstate.Op, generation uint32, err error) {
	replaced := map[netstate.TableDel]bool{}
	kept = slices.Clone(ops)
	if generation, err = n.findLast(kept); err != nil {
		return nil, 0, err
	}
	for i, op := range ops {
		switch o := op.(type) {
		case netstate.TableDel:
			replaced[o] = true
		case netstate.TableSet:
			if !replaced[netstate.TableDel{Family: o.Table.Family, Name: o.Table.Name}] {
				continue
			}
			if generation == 0 {
				if generation, err = n.generation(); err != nil {
					return nil, 0, err
				}
			}
			o.Table.Sets = slices.Clone(o.Table.Sets)
			for j := range o.Table.Sets {
				if err := n.readElements(o.Table, &o.Table.Sets[j]); err != nil {
					return nil, 0, err
				}
			}
			kept[i] = o
		}
	}
	return kept, generation, nil
}
