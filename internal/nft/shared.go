package nft

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Tables of firewall.Mangle4 and Mangle6 are one chain in a table that iptables-nft and other NICs use as well. The
// first one makes the kernel's table, and the last one deletes it. An empty table that was there before goes, too.

// readTable returns a shared table as parseTable does; the zero value: there is none.
func (n *Tables) readTable(f firewall.Family) (image firewall.Image, err error) {
	question := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, 0, netlink.Netfilter(families[f]),
		nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(f.TableOf(""))))
	err = n.filter.Dump(question, func() {}, func(m []byte) (err error) {
		image, err = parseTable(m)
		return err
	})
	if netlink.Answers(err, unix.ENOENT) {
		return firewall.Image{}, nil
	}
	return image, err
}

// wake makes the shared tables in which chains are set not dormant. The kernel refuses that in the transaction that
// changes a chain (nft_table_pending_update in net/netfilter/nf_tables_api.c).
func (n *Tables) wake(ops []netstate.Op) error {
	for _, op := range ops {
		set, is := op.(netstate.TableSet)
		if !is || !set.Table.Family.Shared() {
			continue
		}
		table, err := n.readTable(set.Table.Family)
		if err != nil {
			return err
		}
		if table.Flags&unix.NFT_TABLE_F_DORMANT == 0 {
			continue
		}
		var w writer
		w.beginTransaction(0)
		w.beginTables(unix.NFT_MSG_NEWTABLE, 0, set.Table.Family)
		w.text(unix.NFTA_TABLE_NAME, table.Name)
		w.number32(unix.NFTA_TABLE_FLAGS, 0)
		w.begin(unix.NFNL_MSG_BATCH_END, 0, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
		messages := w.messages()
		failures, err := n.filter.Send(messages, len(messages)-2)
		if err == nil && len(failures) > 0 {
			err = failures[0].Err
		}
		if err != nil {
			return fmt.Errorf("wake the dormant table %s: %w", set.Table.Family, err)
		}
	}
	return nil
}

// deleteTable writes the messages that delete a table.
func (w *writer) deleteTable(d netstate.TableDel) {
	if !d.Family.Shared() {
		w.beginTables(unix.NFT_MSG_DELTABLE, 0, d.Family)
		w.text(unix.NFTA_TABLE_NAME, d.Name)
		w.number32(unix.NFTA_TABLE_FLAGS, 0)
		return
	}
	w.beginTables(unix.NFT_MSG_DELRULE, 0, d.Family) // all rules
	w.text(unix.NFTA_RULE_TABLE, d.Family.TableOf(d.Name))
	w.text(unix.NFTA_RULE_CHAIN, d.Name)
	w.beginTables(unix.NFT_MSG_DELCHAIN, 0, d.Family)
	w.text(unix.NFTA_CHAIN_TABLE, d.Family.TableOf(d.Name))
	w.text(unix.NFTA_CHAIN_NAME, d.Name)
}

// deleteEmpty deletes a shared table. The kernel refuses that if something is in it (EBUSY).
func (w *writer) deleteEmpty(f firewall.Family) {
	w.beginTables(unix.NFT_MSG_DELTABLE, unix.NLM_F_NONREC, f)
	w.text(unix.NFTA_TABLE_NAME, f.TableOf(""))
}

// readShared puts what the wiring with the name has in shared tables in the place of these tables. A table without its
// chain is not the wiring's. What else is in the table is others', but a dormant table keeps all chains out of force.
func (n *Tables) readShared(found map[firewall.Family]firewall.Image, name string) error {
	for _, family := range []firewall.Family{firewall.Mangle4, firewall.Mangle6} {
		image, there := found[family]
		if !there {
			continue
		}
		delete(found, family)
		question := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, 0, netlink.Netfilter(families[family]),
			nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(image.Name)), nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(name)))
		err := n.filter.Dump(question, func() { delete(found, family) }, func(m []byte) error {
			chain, _, err := parseChain(m)
			found[family] = firewall.Image{Family: family, Name: name, Flags: image.Flags & unix.NFT_TABLE_F_DORMANT, Chains: []firewall.ChainImage{chain}}
			return err
		})
		if err != nil && !netlink.Answers(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// isOwn reports whether the chain is one of guestwire's, of any NIC.
func isOwn(table, chain string) bool {
	const prefix = "guestwire-" // netstate.Names.Table
	return strings.HasPrefix(table, prefix) || table == firewall.Mangle4.TableOf("") && strings.HasPrefix(chain, prefix)
}
