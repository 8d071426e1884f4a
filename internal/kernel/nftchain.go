package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
)

// hooks are the hooks of base chains, as numbers.
var hooks = map[firewall.Hook]*nftables.ChainHook{
	firewall.Ingress:     nftables.ChainHookIngress,
	firewall.Input:       nftables.ChainHookInput,
	firewall.Forward:     nftables.ChainHookForward,
	firewall.Output:      nftables.ChainHookOutput,
	firewall.Prerouting:  nftables.ChainHookPrerouting,
	firewall.Postrouting: nftables.ChainHookPostrouting,
}

// hookNames are the hooks by number (enum nf_inet_hooks in linux/netfilter.h; the numbers of bridges in
// linux/netfilter_bridge.h are the same).
var hookNames = []firewall.Hook{firewall.Prerouting, firewall.Input, firewall.Forward, firewall.Output, firewall.Postrouting}

// Chain flags that unix does not name (linux/netfilter/nf_tables.h).
const (
	chainFlags = 10 // NFTA_CHAIN_FLAGS
	chainBase  = 1  // NFT_CHAIN_BASE
)

// readChains reads the chains of a table into the image, without their rules. What is left of Others are
// sets, maps, objects and flowtables.
func (n *Namespace) readChains(image *firewall.Image) error {
	list := request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, nfgenmsg{uint8(families[image.Family])})
	err := n.filter.dump(list, func() { image.Chains = nil }, func(m []byte) error {
		chain, table, err := parseChain(m)
		if table == image.Name {
			image.Chains = append(image.Chains, chain)
		}
		return err
	})
	image.Others -= len(image.Chains)
	slices.SortFunc(image.Chains, func(a, b firewall.ChainImage) int { return strings.Compare(a.Name, b.Name) })
	return err
}

// encodeChain returns a chain for the library, without its rules.
func encodeChain(t *nftables.Table, chain firewall.Chain) *nftables.Chain {
	c := &nftables.Chain{Table: t, Name: chain.Name}
	if chain.Hook == "" {
		return c
	}
	priority, policy := nftables.ChainPriority(int32(chain.Priority)), nftables.ChainPolicyAccept
	if chain.Drops {
		policy = nftables.ChainPolicyDrop
	}
	c.Type, c.Hooknum, c.Device = nftables.ChainType(chain.Type), hooks[chain.Hook], chain.Device
	c.Priority, c.Policy = &priority, &policy
	return c
}

// parseChain parses struct nfgenmsg and the attributes of a chain (NFTA_CHAIN_*), and returns also the
// name of the chain's table. The head of a base chain names flags that a chain of guestwire does not have.
func parseChain(m []byte) (chain firewall.ChainImage, table string, err error) {
	var base firewall.Chain
	var hook []byte
	var flags uint32
	err = eachAttribute(m, sizeofNfgenmsg, func(attribute uint16, v []byte) error {
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
			base.Drops = be32(v) == uint32(nftables.ChainPolicyDrop)
		case chainFlags:
			flags = be32(v)
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
	return eachAttribute(b, 0, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			base.Hook = hookName(be32(v), ofDevice)
		case unix.NFTA_HOOK_PRIORITY:
			base.Priority = int(int32(be32(v)))
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
