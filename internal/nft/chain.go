package nft

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
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
