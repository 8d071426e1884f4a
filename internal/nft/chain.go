package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// hooks are the hooks of base chains, as numbers.
var hooks = map[firewall.Hook]uint32{
	firewall.Ingress:     unix.NF_NETDEV_INGRESS,
	firewall.Input:       unix.NF_INET_LOCAL_IN,
	firewall.Forward:     unix.NF_INET_FORWARD,
	firewall.Output:      unix.NF_INET_LOCAL_OUT,
	firewall.Prerouting:  unix.NF_INET_PRE_ROUTING,
	firewall.Postrouting: unix.NF_INET_POST_ROUTING,
}

// hookNames are the hooks by number (enum nf_inet_hooks in linux/netfilter.h; the numbers of bridges in
// linux/netfilter_bridge.h are the same).
var hookNames = []firewall.Hook{firewall.Prerouting, firewall.Input, firewall.Forward, firewall.Output, firewall.Postrouting}

// Chain flags that unix does not name (linux/netfilter/nf_tables.h).
const (
	chainFlags = 10 // NFTA_CHAIN_FLAGS
	chainBase  = 1  // NFT_CHAIN_BASE
)

// MostChains is how many chains of a table are read: more than a table of guestwire has, so that one with more differs.
// Another program with the right to change the namespace's nftables can add any number, and the reader would keep them
// all. Those that are not read count as objects of others.
const MostChains = 1024

// readChains reads the chains of a table into the image, without their rules. What is left of Others are
// sets, maps, objects and flowtables.
func (n *Tables) readChains(image *firewall.Image) error {
	list := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, netlink.Netfilter(families[image.Family]))
	err := n.filter.Dump(list, func() { image.Chains = nil }, func(m []byte) error {
		chain, table, err := parseChain(m)
		if table == image.Name && len(image.Chains) < MostChains {
			image.Chains = append(image.Chains, chain)
		}
		return err
	})
	image.Others -= len(image.Chains)
	slices.SortFunc(image.Chains, func(a, b firewall.ChainImage) int { return strings.Compare(a.Name, b.Name) })
	return err
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

// writeChain writes the attributes of a chain (NFTA_CHAIN_*), without its rules.
func (w *writer) writeChain(table string, chain firewall.Chain) {
	w.text(unix.NFTA_CHAIN_TABLE, table)
	w.text(unix.NFTA_CHAIN_NAME, chain.Name)
	if chain.Hook == "" {
		return
	}
	hook := w.open(unix.NFTA_CHAIN_HOOK)
	w.number32(unix.NFTA_HOOK_HOOKNUM, hooks[chain.Hook])
	w.number32(unix.NFTA_HOOK_PRIORITY, uint32(int32(chain.Priority)))
	if chain.Device != "" {
		w.text(unix.NFTA_HOOK_DEV, chain.Device)
	}
	w.close(hook)
	policy := uint32(accept)
	if chain.Drops {
		policy = drop
	}
	w.number32(unix.NFTA_CHAIN_POLICY, policy)
	w.text(unix.NFTA_CHAIN_TYPE, chain.Type)
}

// parseChain parses struct nfgenmsg and the attributes of a chain (NFTA_CHAIN_*), and returns also the
// name of the chain's table. The head of a base chain names flags that a chain of guestwire does not have.
func parseChain(m []byte) (chain firewall.ChainImage, table string, err error) {
	var base firewall.Chain
	var hook []byte
	var flags uint32
	err = netlink.EachAttribute(m, netlink.SizeofNetfilter, func(attribute uint16, v []byte) error {
		switch attribute {
		case unix.NFTA_CHAIN_TABLE:
			table = unix.ByteSliceToString(v)
		case unix.NFTA_CHAIN_NAME:
			chain.Name = unix.ByteSliceToString(v)
		case unix.NFTA_CHAIN_TYPE:
			base.Type = unix.ByteSliceToString(v)
		case unix.NFTA_CHAIN_HOOK:
			hook = v
		case unix.NFTA_CHAIN_POLICY:
			base.Drops = netlink.BE32(v) == drop
		case chainFlags:
			flags = netlink.BE32(v)
		}
		return nil
	})
	if err != nil || hook == nil {
		return chain, table, err
	}
	err = parseHook(hook, m[0] == unix.NFPROTO_NETDEV, &base)
	chain.Head = base.Head()
	if flags &^= chainBase; flags != 0 {
		chain.Head += fmt.Sprintf(" flags %#x;", flags)
	}
	return chain, table, err
}

// parseHook parses NFTA_CHAIN_HOOK into base: hook, priority, device.
func parseHook(b []byte, ofDevice bool, base *firewall.Chain) error {
	return netlink.EachAttribute(b, 0, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			base.Hook = hookName(netlink.BE32(v), ofDevice)
		case unix.NFTA_HOOK_PRIORITY:
			base.Priority = int(int32(netlink.BE32(v)))
		case unix.NFTA_HOOK_DEV:
			base.Device = unix.ByteSliceToString(v)
		}
		return nil
	})
}

// hookName is the name of a hook by its number. ofDevice says that the family is netdev, whose numbers are
// others. A number without a name is its own name.
func hookName(number uint32, ofDevice bool) firewall.Hook {
	switch {
	case ofDevice && number == unix.NF_NETDEV_INGRESS:
		return firewall.Ingress
	case !ofDevice && number < uint32(len(hookNames)):
		return hookNames[number]
	}
	return firewall.Hook(fmt.Sprint(number))
}
