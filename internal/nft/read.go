package nft

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

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

// readHeld completes the heads of the maps of ports and the destinations that the wanted tables name by what the kernel
// holds.
func (n *Tables) readHeld(image *firewall.Image, wanted []firewall.Table) error {
	for _, t := range wanted {
		if t.Family != image.Family || t.Name != image.Name {
			continue
		}
		for _, m := range t.Maps {
			have := firewall.PortMap{Name: m.Name}
			err := n.completeHead(image, m.Name, func() string { return have.Held() }, func() { have.Ranges = nil }, func(message []byte, others *bool) error {
				return appendPorts(&have.Ranges, others, message)
			})
			if err != nil {
				return err
			}
		}
		for _, d := range t.Destinations {
			have := firewall.Destinations{Name: d.Name, Version: d.Version, AllPorts: d.AllPorts}
			err := n.completeHead(image, d.Name, func() string { return joined(have).Held() }, func() { have.Boxes = nil }, func(message []byte, others *bool) error {
				return appendBoxes(&have, others, message)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
