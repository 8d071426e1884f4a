package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// flowProbe is a table with a flow table, without links. No NIC's table can have its name.
var flowProbe = firewall.Table{Family: firewall.Inet, Name: "guestwire/probe", Flows: []firewall.FlowTable{{Name: "flows"}},
	Chains: []firewall.Chain{{Name: "established", Rules: []firewall.Rule{{Verdict: firewall.Offload{Table: "flows"}}}}}}

// CanOffload reports whether established connections can pass the namespace by a flow table, unseen by its rules: the
// kernel has flow tables, and no rules of another program than guestwire see each packet that the namespace forwards.
// The kernel loads the modules of flow tables for the question.
//
// A kernel can be built with flow tables and lack the modules. So CanOffload makes a flow table, and deletes it in the
// same transaction: nobody can see the table, and the namespace's nftables get another generation. A kernel that was
// built without flow tables is not asked so, as a transaction that the kernel gives up waits 10 ms.
func (n *Tables) CanOffload() (bool, error) {
	if n.filter == nil {
		return false, nil
	}
	tracks, err := exists(TrackedCount)
	if err != nil {
		return false, fmt.Errorf("ask for flow tables: %w", err)
	}
	if built, err := exists(flowTimeout); err != nil {
		return false, fmt.Errorf("ask for flow tables: %w", err)
	} else if tracks && !built {
		return false, nil
	}
	if watched, err := n.Watched(); watched || err != nil {
		return false, err
	}
	can, err := n.takes(flowProbe)
	if err != nil {
		return false, fmt.Errorf("ask for flow tables: %w", err)
	}
	return can, nil
}

// sourceProbe is a table with a rule that looks up the source.
var sourceProbe = firewall.Table{Family: firewall.Inet, Name: "guestwire/probe",
	Chains: []firewall.Chain{{Name: "local", Rules: []firewall.Rule{{Matches: []firewall.Match{firewall.LocalSource{}}, Verdict: firewall.Return{}}}}}}

// MatchesLocalSources reports whether a rule can match firewall.LocalSource, in the way of CanOffload.
func (n *Tables) MatchesLocalSources() (bool, error) {
	if n.filter == nil {
		return false, nil
	}
	can, err := n.takes(sourceProbe)
	if err != nil {
		return false, fmt.Errorf("ask for rules about local addresses: %w", err)
	}
	return can, nil
}

// trackProbe is a table with a rule about connections.
var trackProbe = firewall.Table{Family: firewall.Inet, Name: "guestwire/probe",
	Chains: []firewall.Chain{{Name: "tracked", Rules: []firewall.Rule{{Matches: []firewall.Match{firewall.State{States: firewall.New}}, Verdict: firewall.Return{}}}}}}

// LoadTracking has the kernel load connection tracking, in the way of CanOffload. A kernel that lacks it stays as it
// is.
func (n *Tables) LoadTracking() error {
	if tracks, err := exists(TrackedCount); n.filter == nil || tracks || err != nil {
		return err
	}
	if _, err := n.takes(trackProbe); err != nil {
		return fmt.Errorf("load connection tracking: %w", err)
	}
	return nil
}

// fwdProbe is a table with a rule that forwards frames.
var fwdProbe = firewall.Table{Family: firewall.NetDev, Name: "guestwire/probe",
	Chains: []firewall.Chain{{Name: "forward", Rules: []firewall.Rule{{Verdict: firewall.Fwd{Device: "lo", Index: 1}}}}}}

// HasFwd reports whether a rule can be a firewall.Fwd. A loaded module says so; otherwise HasFwd asks in the way of
// CanOffload.
func (n *Tables) HasFwd() (bool, error) {
	if n.filter == nil {
		return false, nil
	}
	if _, err := os.Stat("/sys/module/nft_fwd_netdev"); err == nil {
		return true, nil
	}
	can, err := n.takes(fwdProbe)
	if err != nil {
		return false, fmt.Errorf("ask for rules that forward frames: %w", err)
	}
	return can, nil
}

// takes reports whether the kernel has what the table needs.
func (n *Tables) takes(t firewall.Table) (bool, error) {
	failures, _, err := n.transact([]netstate.Op{netstate.TableSet{Table: t}, netstate.TableDel{Family: t.Family, Name: t.Name}}, 0)
	switch {
	case err != nil:
		return false, err
	case len(failures) == 0:
		n.latest.generation++
		return true, nil
	case errors.Is(failures[0].Err, unix.ENOENT), errors.Is(failures[0].Err, unix.EOPNOTSUPP), errors.Is(failures[0].Err, unix.EINVAL):
		return false, nil // before Linux 5.8 a flow table without links is invalid
	}
	return false, failures[0].Err
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Watched reports whether rules of another program see the packets of established connections that the namespace
// forwards: chains of nftables other than those of NAT, which see a connection's first packet, and tables of
// iptables-legacy, also if the caller may not read which there are.
func (n *Tables) Watched() (bool, error) {
	found := false
	list := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, netlink.Netfilter(unix.NFPROTO_UNSPEC))
	err := n.filter.Dump(list, func() { found = false }, func(m []byte) error {
		sees, err := watches(m)
		found = found || sees
		return err
	})
	if found || err != nil {
		return found, err
	}
	for _, path := range LegacyTables {
		tables, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrPermission) {
			return true, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if slices.ContainsFunc(strings.Fields(string(tables)), func(name string) bool { return name != "nat" }) {
			return true, nil
		}
	}
	return false, nil
}

// LegacyTables list the namespace's tables of iptables-legacy.
var LegacyTables = map[firewall.Family]string{
	firewall.IPTablesLegacy: "/proc/thread-self/net/ip_tables_names", firewall.IP6TablesLegacy: "/proc/thread-self/net/ip6_tables_names",
}

// watches reports whether a chain (struct nfgenmsg, NFTA_CHAIN_*) is one of those that Watched looks for.
func watches(m []byte) (bool, error) {
	chain, table, err := parseChain(m)
	if err != nil || chain.Head == "" || isOwn(table, chain.Name) || strings.HasPrefix(chain.Head, "type nat ") {
		return false, err
	}
	switch m[0] {
	case unix.NFPROTO_BRIDGE:
		return true, nil
	case unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6:
		return !strings.Contains(chain.Head, " hook input ") && !strings.Contains(chain.Head, " hook output "), nil
	}
	return false, nil
}

// checksum is the target of iptables that completes checksums (linux/netfilter/xt_CHECKSUM.h).
const checksum = "CHECKSUM"

// CompletesChecksums returns the versions of IP whose packets a rule can complete the checksums of. The kernel
// loads the modules for the question.
func (n *Tables) CompletesChecksums() (versions []ip.Version, err error) {
	const compatGet, ofTarget = 0, 1 // NFNL_MSG_COMPAT_GET, linux/netfilter/nf_tables_compat.h
	if n.filter == nil {
		return nil, nil
	}
	for _, v := range ip.Both {
		family := ip.Pick(v, firewall.Mangle4, firewall.Mangle6)
		question := netlink.NewRequest(unix.NFNL_SUBSYS_NFT_COMPAT<<8|compatGet, 0, netlink.Netfilter(families[family]),
			nl.NewRtAttr(unix.NFTA_COMPAT_NAME, nl.ZeroTerminated(checksum)),
			nl.NewRtAttr(unix.NFTA_COMPAT_REV, []byte{0, 0, 0, 0}), nl.NewRtAttr(unix.NFTA_COMPAT_TYPE, []byte{0, 0, 0, ofTarget}))
		switch err := n.filter.Ask(question); { // an answer ends with the acknowledgement alone
		case err == nil:
			versions = append(versions, v)
		case !netlink.Answers(err, unix.ENOENT) && !netlink.Answers(err, unix.EINVAL): // EINVAL: nfnetlink without nft_compat
			return nil, fmt.Errorf("ask for the target %s: %w", checksum, err)
		}
	}
	return versions, nil
}

// A kernel that tracks connections has TrackedCount, and also flowTimeout if it was built with flow tables (since Linux
// 5.14).
const (
	TrackedCount = "/proc/sys/net/netfilter/nf_conntrack_count"
	flowTimeout  = "/proc/sys/net/netfilter/nf_flowtable_tcp_timeout"
)
