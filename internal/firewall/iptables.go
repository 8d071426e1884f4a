package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/ip"
)

// Families of tables that iptables holds. The names are those of the programs.
const (
	IPTablesNFT     Family = "iptables-nft"
	IP6TablesNFT    Family = "ip6tables-nft"
	IPTablesLegacy  Family = "iptables-legacy"
	IP6TablesLegacy Family = "ip6tables-legacy"
)

// IPTables returns the IP version of an iptables program, 4 or 6; 0 for a family of nftables.
func (f Family) IPTables() ip.Version {
	switch f {
	case IPTablesNFT, IPTablesLegacy:
		return 4
	case IP6TablesNFT, IP6TablesLegacy:
		return 6
	}
	return 0
}

// IPTables returns the rules of an inet table for one IP version, as chains of iptables. Each chain's name
// begins with name and a hyphen; its Type is the table of iptables. The built-in chain of a Hook jumps to the
// chain with its first rule.
//
// Accept becomes RETURN, so that the chains of other programs still see the packet, as in nftables. RETURN
// ends only one chain: after a [Jump] there must be no rule that matches an accepted packet. A chain that a
// [Goto] leads to returns after the last Jump.
func (t Table) IPTables(program Family, name string) Table {
	out := Table{Family: program, Name: name}
	types := map[string]string{} // of the chains without a hook
	for _, c := range t.Chains {
		chain := Chain{Name: name + "-" + shortName(c.Name), Type: c.Type, Hook: c.Hook}
		switch {
		case c.Priority == Raw:
			chain.Type = "raw"
		case c.Hook == "":
			chain.Type = types[c.Name]
		}
		if chain.Type == "" {
			continue // only rules of the other IP version jump to the chain
		}
		for _, r := range c.Rules {
			if v := r.ipVersion(); v != 0 && v != program.IPTables() {
				continue
			}
			switch v := r.Verdict.(type) {
			case Jump:
				types[v.Chain] = chain.Type
				r.Verdict = Jump{Chain: name + "-" + shortName(v.Chain)}
			case Goto:
				types[v.Chain] = chain.Type
				r.Verdict = Goto{Chain: name + "-" + shortName(v.Chain)}
			}
			chain.Rules = append(chain.Rules, t.forIPTables(r)...)
		}
		out.Chains = append(out.Chains, chain)
	}
	return out
}

// shortName returns a chain's name with at most 9 characters. iptables allows 28, and the prefix with the
// link's name takes up to 19.
func shortName(chain string) string {
	switch chain {
	case "from-network":
		return "network"
	case "from-namespace":
		return "namespace"
	case "to-namespace":
		return "input"
	case "to-guest-4", "to-guest-6": // an IP version has only one of them
		return "guest"
	case "loopback-4", "loopback-6":
		return "local"
	}
	return chain
}

// OfIPTables reports whether the iptables chain belongs to the [Table] with that name.
func OfIPTables(chain, name string) bool {
	rest, ok := strings.CutPrefix(chain, name+"-")
	return ok && !strings.Contains(rest, "-")
}

// ipVersion returns the only IP version that the rule can match; 0: both.
func (r Rule) ipVersion() ip.Version {
	switch v := r.Verdict.(type) {
	case DNAT:
		return ip.Of(v.Address)
	case DNATMap:
		return ip.Of(v.Address)
	case DNATRange:
		return ip.Of(v.Address)
	case SNAT:
		return ip.Of(v.Address)
	}
	for _, m := range r.Matches {
		switch m := m.(type) {
		case IP:
			return m.Version
		case Source:
			return ip.Of(m.Prefix.Addr())
		case Destination:
			return ip.Of(m.Prefix.Addr())
		case ICMP:
			return m.Version
		case Origin:
			return ip.Of(m.Prefix.Addr())
		}
	}
	return 0
}

// BuiltIn returns the name of the built-in iptables chain at the hook.
func (h Hook) BuiltIn() string { return strings.ToUpper(string(h)) }

// IPTables returns the rule as iptables -S prints it, without "-A CHAIN". It panics on matches and verdicts
// that only bridge and netdev tables have.
func (r Rule) IPTables() string {
	var source, destination, in, out, transport, more string
	for _, m := range r.Matches {
		switch m := m.(type) {
		case IP:
		case Source:
			source = "-s " + m.Prefix.String() + " "
		case Destination:
			destination = "-d " + m.Prefix.String() + " "
		case InInterface:
			in = exclamation(m.Inverted) + "-i " + m.Name + " "
		case OutInterface:
			out = exclamation(m.Inverted) + "-o " + m.Name + " "
		case Protocol:
			transport = exclamation(m.Inverted) + "-p " + protocol(m.Number) + " "
		case DestinationPort:
			more += "-m " + protocol(m.Protocol) + " " + exclamation(m.Inverted) + "--dport " + strings.ReplaceAll(ports(m.First, m.Last), "-", ":") + " "
		case SourcePort:
			more += "-m " + protocol(m.Protocol) + " " + exclamation(m.Inverted) + "--sport " + strings.ReplaceAll(ports(m.First, m.Last), "-", ":") + " "
		case ICMP:
			more += ip.Pick(m.Version, "-m icmp --icmp-type ", "-m icmp6 --icmpv6-type ") + fmt.Sprint(m.Type)
			if m.Code != 0 {
				more += fmt.Sprintf("/%d", m.Code)
			}
			more += " "
		case State:
			more += "-m conntrack --ctstate " + m.iptables() + " "
		case Translated:
			more += "-m conntrack --ctstate DNAT "
		case Origin:
			more += "-m conntrack " + map[bool]string{false: "--ctorigsrc ", true: "--ctreplsrc "}[m.Reply] + prefix(m.Prefix) + " "
		case Unconfirmed:
			more += "-m conntrack ! --ctstatus CONFIRMED "
		case Connections:
			more += fmt.Sprintf("-m connlimit --connlimit-above %d --connlimit-mask 0 --connlimit-saddr ", m.Over)
		case Opening:
			more += "-m tcp " + exclamation(m.Inverted) + "--tcp-flags SYN,RST SYN "
		default:
			panic(fmt.Sprintf("iptables cannot express %T", m)) // a match of a bridge or netdev table
		}
	}
	text := source + destination + in + out + transport + more
	if to, is := r.Verdict.(Goto); is {
		return text + "-g " + to.Chain
	}
	return text + "-j " + iptablesTarget(r.Verdict)
}

func exclamation(not bool) string {
	if not {
		return "! "
	}
	return ""
}

// iptables returns the states in the order in which iptables -S prints them.
func (m State) iptables() string {
	var words []string
	for _, s := range []struct {
		bit  States
		name string
	}{{Invalid, "INVALID"}, {New, "NEW"}, {Related, "RELATED"}, {Established, "ESTABLISHED"}, {Untracked, "UNTRACKED"}} {
		if m.States&s.bit != 0 {
			words = append(words, s.name)
		}
	}
	return strings.Join(words, ",")
}

func iptablesTarget(v Verdict) string {
	switch v := v.(type) {
	case Accept, Return:
		return "RETURN"
	case Drop:
		return "DROP"
	case Jump:
		return v.Chain
	case Masquerade:
		if v != (Masquerade{}) {
			return "MASQUERADE --to-ports " + ports(v.First, v.Last)
		}
		return "MASQUERADE"
	case ClampMSS:
		return "TCPMSS --clamp-mss-to-pmtu"
	case DNAT:
		_, to, _ := strings.Cut(v.String(), " to ")
		return "DNAT --to-destination " + to
	case DNATRange:
		return v.iptables()
	case SNAT:
		_, to, _ := strings.Cut(v.String(), " to ")
		return "SNAT --to-source " + to
	}
	panic(fmt.Sprintf("iptables cannot express %T", v))
}

// IPTablesTables are the tables of iptables in which guestwire has chains.
var IPTablesTables = []string{"raw", "filter", "nat"}

// IPTablesHead returns the Head of a [ChainImage] of iptables: the table, and the chains that jump to the
// chain.
func IPTablesHead(table string, from ...string) string {
	return strings.Join(append([]string{table}, from...), " ")
}

// forIPTables returns the rules of iptables for a rule with a DNATMap, one for each range, and each other rule as it
// is.
func (t Table) forIPTables(r Rule) []Rule {
	v, is := r.Verdict.(DNATMap)
	if !is {
		return []Rule{r}
	}
	var rules []Rule
	for _, m := range t.Maps {
		if m.Name != v.Map {
			continue
		}
		for _, p := range m.merged() {
			one := Rule{
				Matches: append(slices.Clone(r.Matches), DestinationPort{Protocol: v.Protocol, First: p.First, Last: p.Last}),
				Verdict: DNATRange{Address: v.Address, First: p.To, Last: p.To + (p.Last - p.First), Base: p.First},
			}
			if p.First == p.Last {
				one.Verdict = DNAT{Address: v.Address, Port: p.To}
			}
			rules = append(rules, one)
		}
	}
	return rules
}
