package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
)

// Errors of [Namespace.Pin]. After each nothing is pinned.
var (
	ErrNoTable  = errors.New("no such table")
	ErrNoPins   = errors.New("the table has no sets of pins")
	ErrPinsFull = fmt.Errorf("the set of pins is full: it has %d addresses and ports of one version of IP", firewall.MaxPins)
)

// SetError is the error about a set that is not as Setup makes it: another program has put its own there, or has
// removed it.
type SetError struct {
	Table, Set string
	Gone       bool
}

func (e *SetError) Error() string {
	return fmt.Sprintf("the set %s of the nftables table inet %s is %s", e.Set, e.Table, map[bool]string{true: "gone", false: "not as Setup makes it"}[e.Gone])
}

// CheckSets returns a *SetError if a set of the inet table has the name of a set of pins or of one of these
// destinations, and is another one. The error is ErrNoTable if there is no table.
func (n *Tables) CheckSets(table string, destinations []firewall.Destinations) error {
	heads, err := n.declaredSets(table)
	if err != nil {
		return err
	}
	pins := map[string]bool{}
	for _, version := range ip.Both {
		set := firewall.NewPinSet(version)
		pins[set.Name] = true
		if head, there := heads[set.Name]; there && head != set.Head() {
			return &SetError{Table: table, Set: set.Name}
		}
	}
	for _, d := range destinations {
		if head, there := heads[d.Name]; there && !pins[d.Name] && head != d.Declaration() {
			return &SetError{Table: table, Set: d.Name}
		}
	}
	return nil
}

// declaredSets are the heads of the inet table's sets and maps, by name.
func (n *Tables) declaredSets(table string) (map[string]string, error) {
	if n.filter == nil {
		return nil, ErrNoTable
	}
	heads := map[string]string{}
	list := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, netlink.Netfilter(unix.NFPROTO_INET),
		nl.NewRtAttr(unix.NFTA_SET_TABLE, nl.ZeroTerminated(table)))
	err := n.filter.Dump(list, func() { clear(heads) }, func(m []byte) error {
		set, of, err := parseSet(m)
		if of == table {
			heads[set.Name] = set.Head
		}
		return err
	})
	if netlink.Answers(err, unix.ENOENT) || netlink.Answers(err, unix.EINVAL) { // EINVAL: nfnetlink without nf_tables
		return nil, ErrNoTable
	}
	return heads, err
}

// pinTries is how often Pin reads again as another transaction came between. The namespace's root could go on for ever.
const pinTries = 64

// Pin adds the pins to the sets of the inet table with the name, for so long; a pin that has a longer life keeps it.
// Their comment is the name; empty: there is none. What is diverted needs no pin, and gets none. Pin leaves out each
// address whose pin the table refuses (refused), or for whose version of IP there is no set (lacking).
//
// All is one transaction, of the nftables generation in which Pin has read what is there. Before Linux 6.12 the kernel
// does not renew an element (nft_add_set_elem, net/netfilter/nf_tables_api.c), so the transaction deletes it first.
//
// The kernel begins a generation, and then fills the sets with ranges (nf_tables_commit). It carries out the next
// transaction after that. So Pin reads the refused destinations again after another transaction of the generation:
// an empty one, as one that pins would begin another generation.
func (n *Tables) Pin(ctx context.Context, table string, pins []firewall.Pin, life time.Duration, name string) (refused, lacking []netip.Addr, err error) {
	if n.filter == nil {
		return nil, nil, ErrNoTable
	}
	var filled, missing uint32 // the generations in which the sets are filled, or are not there
	for range pinTries {
		if err := ctx.Err(); err != nil {
			return nil, nil, context.Cause(ctx)
		}
		generation, err := n.generation()
		if netlink.Answers(err, unix.EINVAL) { // nfnetlink without nf_tables
			err = ErrNoTable
		}
		var sets map[ip.Version]*pinSet
		if err == nil {
			sets, err = n.readPinSets(table)
		}
		if netlink.Answers(err, unix.ENOENT) { // the table was replaced meanwhile
			continue
		}
		var other *SetError
		if (errors.Is(err, ErrNoPins) || errors.Is(err, ErrNoTable) || errors.As(err, &other)) && missing != generation {
			missing = generation // or it is being replaced: the same answer again is the truth
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		refused, lacking = unpinned(sets, pins)
		sure := len(refused) == 0 || filled == generation
		for _, p := range pins {
			if err != nil || !sure || slices.Contains(refused, p.To) || slices.Contains(lacking, p.To) || sets[ip.Of(p.To)].diverts(p) {
				continue
			}
			err = n.addPin(table, sets[ip.Of(p.To)], p, life, name)
		}
		if netlink.Answers(err, unix.EINVAL) { // another set has come in the place of this one meanwhile
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		switch err := n.sendPins(table, sets, generation); {
		case err == nil && sure:
			return refused, lacking, nil
		case err == nil:
			filled = generation
		case netlink.Answers(err, unix.ENFILE):
			return nil, nil, ErrPinsFull
		case !netlink.Answers(err, unix.ERESTART) && !netlink.Answers(err, unix.ENOENT): // another generation; a pin has ended meanwhile
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("other programs keep changing the namespace's nftables: end them, or call again")
}

// Unpin ends all pins of the inet table with the name. A set that another program has put in the place of one of these
// stays.
func (n *Tables) Unpin(table string) error {
	heads, err := n.declaredSets(table)
	if err != nil {
		return err
	}
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.reset()
	w.beginTransaction(0)
	for _, version := range ip.Both {
		if set := firewall.NewPinSet(version); heads[set.Name] == set.Head() {
			w.beginTables(unix.NFT_MSG_DELSETELEM, 0, firewall.Inet) // without elements: all
			w.text(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
			w.text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
			n.frees = true
		}
	}
	return n.endTransaction(w)
}

// pinSet is the set of pins of one version of IP, and what a transaction does with it.
type pinSet struct {
	name           string
	pinnable       []firewall.Box
	diverted       []firewall.Box     // what arrives elsewhere, and needs no pin
	renewed, added []firewall.Element // all that are renewed are added
}

func (s *pinSet) diverts(p firewall.Pin) bool {
	return slices.ContainsFunc(s.diverted, func(b firewall.Box) bool { return b.Has(p) })
}

// readPinSets returns the sets by version of IP, at least one.
func (n *Tables) readPinSets(table string) (map[ip.Version]*pinSet, error) {
	heads, err := n.declaredSets(table)
	if err != nil {
		return nil, err
	}
	sets := map[ip.Version]*pinSet{}
	for _, version := range ip.Both {
		want := firewall.NewPinSet(version)
		head, there := heads[want.Name]
		if !there {
			continue
		}
		if head != want.Head() {
			return nil, &SetError{Table: table, Set: want.Name}
		}
		s := &pinSet{name: want.Name}
		sets[version] = s
		for _, d := range firewall.DestinationsOf(firewall.PinnableSet(version), version, nil) {
			if head, there := heads[d.Name]; !there || head != d.Declaration() {
				return nil, &SetError{Table: table, Set: d.Name, Gone: !there}
			}
			boxes, failed := n.Boxes(table, d)
			s.pinnable, err = append(s.pinnable, boxes...), errors.Join(err, failed)
		}
		diverted := firewall.Destinations{Name: firewall.DivertedSet(version), Version: version}
		switch head, there := heads[diverted.Name]; {
		case there && head != diverted.Declaration():
			return nil, &SetError{Table: table, Set: diverted.Name}
		case there:
			boxes, failed := n.Boxes(table, diverted)
			s.diverted, err = boxes, errors.Join(err, failed)
		}
	}
	if len(sets) == 0 {
		return nil, ErrNoPins
	}
	return sets, err
}

// unpinned are the addresses that are not pinned.
func unpinned(sets map[ip.Version]*pinSet, pins []firewall.Pin) (refused, lacking []netip.Addr) {
	for _, p := range pins {
		switch s := sets[ip.Of(p.To)]; {
		case s == nil && !slices.Contains(lacking, p.To):
			lacking = append(lacking, p.To)
		case s != nil && !s.diverts(p) && !slices.Contains(refused, p.To) && !slices.ContainsFunc(s.pinnable, func(b firewall.Box) bool { return b.Has(p) }):
			refused = append(refused, p.To)
		}
	}
	return refused, lacking
}

// addPin adds the pin to what the transaction does, unless the kernel has it for a longer time.
func (n *Tables) addPin(table string, s *pinSet, p firewall.Pin, life time.Duration, name string) error {
	pin := firewall.Element{Key: appendKey(nil, p.To, p.Protocol, p.Port), Milliseconds: uint64(life.Milliseconds()), Comment: name}
	there, err := n.readElement(table, s.name, pin.Key)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		if left := there[0].Milliseconds; left == 0 || left >= pin.Milliseconds {
			return nil
		}
		s.renewed = append(s.renewed, firewall.Element{Key: pin.Key})
	}
	s.added = append(s.added, pin)
	return nil
}

// Pinned returns the name with which Pin has pinned; not pinned: the set has no such pin, or there is none.
func (n *Tables) Pinned(table string, p firewall.Pin) (name string, pinned bool, err error) {
	if n.filter == nil {
		return "", false, nil
	}
	there, err := n.readElement(table, firewall.PinSet(ip.Of(p.To)), appendKey(nil, p.To, p.Protocol, p.Port))
	if len(there) == 0 || err != nil {
		return "", false, err
	}
	return there[0].Comment, true, nil
}

// readElement returns the element of the inet table's set with the key; none: there is no such element, set or table.
func (n *Tables) readElement(table, set string, value []byte) (there []firewall.Element, err error) {
	key := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_KEY, nil)
	key.AddRtAttr(unix.NFTA_DATA_VALUE, value)
	list := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_LIST_ELEMENTS, nil)
	list.AddRtAttr(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, nil).AddChild(key)
	question := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, 0, netlink.Netfilter(unix.NFPROTO_INET),
		nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(table)), nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)), list)
	err = n.filter.Dump(question, func() { there = nil }, func(m []byte) (err error) {
		there, err = parseElements(m)
		return err
	})
	if netlink.Answers(err, unix.ENOENT) {
		return nil, nil
	}
	return there, err
}

// sendPins carries the transaction out, unless another generation has come. A table that is there is added, which
// changes nothing: so there is a transaction also if there is nothing to pin.
func (n *Tables) sendPins(table string, sets map[ip.Version]*pinSet, generation uint32) error {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.reset()
	w.beginTransaction(generation)
	w.beginTables(unix.NFT_MSG_NEWTABLE, 0, firewall.Inet)
	w.text(unix.NFTA_TABLE_NAME, table)
	for _, s := range sets {
		w.writeElements(unix.NFT_MSG_DELSETELEM, firewall.Inet, table, s.name, 0, s.renewed)
		w.writeElements(unix.NFT_MSG_NEWSETELEM, firewall.Inet, table, s.name, 0, s.added)
		n.frees = n.frees || len(s.renewed) > 0
	}
	return n.endTransaction(w)
}

// endTransaction sends the transaction. The error is the first of the kernel's answers.
func (n *Tables) endTransaction(w *writer) error {
	w.begin(unix.NFNL_MSG_BATCH_END, 0, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	messages := w.messages()
	failures, err := n.filter.Send(messages, len(messages)-2)
	if err == nil && len(failures) > 0 {
		err = failures[0].Err
	}
	return err
}
