package nft

import (
	"maps"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// latestTables are the tables that one transaction has left in a namespace whose tables were read before. To read them
// back takes longer than to make them.
//
// Each transaction that changes the nftables of a namespace makes the generation one higher (nf_tables_commit,
// net/netfilter/nf_tables_api.c). If the generation is that of the reading before plus one, no other program has
// changed the tables meanwhile, and the kernel has the tables that were read and those that were sent. What the kernel
// changes by itself leaves the generation: the elements that packets add to sets, which an image does not have, and the
// end of chains whose link goes away, which the links show. The tables are therefore known once only. A chain that was
// sent with the present name of a link is read back, as a kernel that binds names loses it when the link is renamed.
type latestTables struct {
	read       bool             // the tables with the name were read
	name       string           // of the tables
	generation uint32           // before the reading
	sent       bool             // one transaction has been carried out since
	images     []firewall.Image // what the kernel has then
}

// commit notes a transaction. After a second one, nothing is known.
func (t *latestTables) commit(ops []netstate.Op, done bool) {
	known := *t
	*t = latestTables{}
	if !known.read || known.sent || !done {
		return
	}
	known.images = slices.Clone(known.images)
	remove := func(f firewall.Family) {
		known.images = slices.DeleteFunc(known.images, func(i firewall.Image) bool { return i.Family == f })
	}
	for _, op := range ops {
		switch op := op.(type) {
		case netstate.TableDel:
			remove(op.Family)
		case lastDel:
			remove(op.Family)
		case netstate.TableSet:
			known.images = append(known.images, op.Table.Held())
		case netstate.TableChange:
			remove(op.Table.Family)
			known.images = append(known.images, op.Table.Held())
		}
	}
	known.sent = true
	*t = known
}

// knowTables puts the latest tables into the snapshot if they are what the kernel has.
func (n *Tables) knowTables(s *netstate.Snapshot, names netstate.Names) (known bool, err error) {
	latest := n.latest
	n.latest = latestTables{}
	if latest.name != names.Table {
		return false, nil
	}
	generation, err := n.generation()
	if err != nil || generation != latest.generation+1 {
		return false, err
	}
	s.Tables = latest.images
	n.see(s, names, generation)
	return true, nil
}

// Sight stays the same while the tables of a wiring stay as a Snapshot found them.
type Sight struct {
	Generation uint32                  `json:"generation"`
	Links      map[string]int          `json:"links"` // indices of the wiring's links; nil: the Snapshot did not find it out
	Sizes      map[firewall.Family]int `json:"sizes"` // of the tables, see firewall.Image.Size
}

// see notes what is to be seen while the tables stay as s has them.
func (n *Tables) see(s *netstate.Snapshot, names netstate.Names, generation uint32) {
	if BindsNames() || !slices.ContainsFunc(s.Tables, firewall.Image.Offloads) {
		n.sight = Sight{generation, linksOf(s, names), sizesOf(s.Tables)}
	}
}

// Sight returns that of the last Snapshot, if no transaction has followed.
func (n *Tables) Sight() Sight { return n.sight }

// Changed reports whether there is another generation than at the sight.
func (n *Tables) Changed(seen Sight) bool {
	if n.filter == nil {
		return true
	}
	generation, err := n.generation()
	return err != nil || generation != seen.Generation
}

// Expect lets the next Snapshot take the tables for those in the kernel if it has the same sight as an earlier one that
// found them, also one of another process. The kernel deletes the chain of a link that goes away, and keeps the
// generation (before Linux 6.16): then another link has the name, or the table has a chain less. A flow table would
// lose the link without a trace, so there is no sight of one.
func (n *Tables) Expect(seen Sight, tables []firewall.Table) {
	n.expected = expected{seen, tables, false}
}

// ExpectNothingNew is Expect for a caller that needs no tables then: the Snapshot has TablesStay. It reads no iptables.
func (n *Tables) ExpectNothingNew(seen Sight) { n.expected = expected{seen, nil, true} }

type expected struct {
	Sight
	tables []firewall.Table
	stay   bool
}

func (e expected) is(seen Sight) bool {
	return e.Links != nil && e.Generation == seen.Generation && maps.Equal(e.Links, seen.Links) && maps.Equal(e.Sizes, seen.Sizes)
}

// images returns what the tables are read as if they are there.
func (e expected) images() (images []firewall.Image) {
	for _, t := range e.tables {
		if t.Family.IPTables() == 0 {
			images = append(images, t.Held())
		}
	}
	slices.SortFunc(images, func(a, b firewall.Image) int { return strings.Compare(string(a.Family), string(b.Family)) })
	return images
}

func sizesOf(images []firewall.Image) map[firewall.Family]int {
	sizes := map[firewall.Family]int{}
	for _, i := range images {
		sizes[i.Family] = i.Size()
	}
	return sizes
}

// linksOf are the indices of the wiring's links.
func linksOf(s *netstate.Snapshot, names netstate.Names) map[string]int {
	links := map[string]int{}
	for _, l := range s.Links {
		if l.Name == names.NIC || slices.Contains(names.Links(), l.Name) {
			links[l.Name] = l.Index
		}
	}
	return links
}
