package firewall

import (
	"fmt"
	"slices"
	"strings"
)

// Families of tables that iptables holds, called as the programs that do it.
const (
	IPTablesNFT     Family = "iptables-nft"
	IP6TablesNFT    Family = "ip6tables-nft"
	IPTablesLegacy  Family = "iptables-legacy"
	IP6TablesLegacy Family = "ip6tables-legacy"
)

// IPTables is the version of IP that the program is for; 0: the family is one of nftables.
func (f Family) IPTables() int {
	switch f {
	case IPTablesNFT, IPTablesLegacy:
		return 4
	case IP6TablesNFT, IP6TablesLegacy:
		return 6
	}
	return 0
}

// IPTables is what an inet table says to one version of IP, as chains of iptables whose names begin with
// that of the table and a hyphen. Their Type is the table of iptables, and each with a hook is jumped to
// from the beginning of that one's chain.
//
// What is accepted goes back to where the chain was jumped to from: the chains of others have their say,
// as in nftables. So behind a jump there must be no rule for what was accepted.
func (t Table) IPTables(program Family, name string) Table {
	out := Table{Family: program, Name: name}
	types := map[string]string{} // of chains that are jumped to
	for _, c := range t.Chains {
		chain := Chain{Name: name + "-" + short(c.Name), Type: c.Type, Hook: c.Hook}
		switch {
		case c.Priority == Raw:
			chain.Type = "raw"
		case c.Hook == "":
			chain.Type = types[c.Name]
		}
		if chain.Type == "" {
			continue // of the other version
		}
		for _, r := range c.Rules {
			if v := r.version(); v != 0 && v != program.IPTables() {
				continue
			}
			if j, is := r.Verdict.(Jump); is {
				types[j.Chain] = chain.Type
				r.Verdict = Jump{Chain: name + "-" + short(j.Chain)}
			}
			chain.Rules = append(chain.Rules, r)
		}
		out.Chains = append(out.Chains, chain)
	}
	return out
}

// short is a chain's name with 9 characters at most: in iptables there are 28, of which our mark and
// that of the link take up to 19.
func short(chain string) string {
	switch chain {
	case "from-network":
		return "network"
	case "from-namespace":
		return "namespace"
	case "to-namespace":
		return "input"
	case "to-guest-4", "to-guest-6": // of which a version has one
		return "guest"
	}
	return chain
}

// OfIPTables says whether a chain of iptables belongs to the table with that name.
func OfIPTables(chain, name string) bool {
	rest, ok := strings.CutPrefix(chain, name+"-")
	return ok && !strings.Contains(rest, "-")
}

// version is the version of IP that a rule is about; 0: both.
func (r Rule) version() int {
	is4 := func(is bool) int {
		if is {
			return 4
		}
		return 6
	}
	switch v := r.Verdict.(type) {
	case DNAT:
		return is4(v.Address.Is4())
	case SNAT:
		return is4(v.Address.Is4())
	}
	for _, m := range r.Matches {
		switch m := m.(type) {
		case IP:
			return m.Version
		case Source:
			return is4(m.Prefix.Addr().Is4())
		case Destination:
			return is4(m.Prefix.Addr().Is4())
		case ICMP:
			return m.Version
		}
	}
	return 0
}

// BuiltIn is the chain of iptables at a hook.
func (h Hook) BuiltIn() string { return strings.ToUpper(string(h)) }

// IPTables is the rule as iptables -S prints it, without the chain.
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
			in = exclamation(m.Not) + "-i " + m.Name + " "
		case OutInterface:
			out = exclamation(m.Not) + "-o " + m.Name + " "
		case Protocol:
			transport = exclamation(m.Not) + "-p " + protocol(m.Number) + " "
		case DestinationPort:
			more += "-m " + protocol(m.Protocol) + " " + exclamation(m.Not) + "--dport " + strings.ReplaceAll(ports(m.First, m.Last), "-", ":") + " "
		case ICMP:
			more += map[int]string{4: "-m icmp --icmp-type ", 6: "-m icmp6 --icmpv6-type "}[m.Version] + fmt.Sprint(m.Type) + " "
		case State:
			more += "-m conntrack --ctstate " + m.iptables() + " "
		case Translated:
			more += "-m conntrack --ctstate DNAT "
		case Connections:
			more += fmt.Sprintf("-m connlimit --connlimit-above %d --connlimit-mask 0 --connlimit-saddr ", m.Over)
		case Opening:
			more += "-m tcp " + exclamation(m.Not) + "--tcp-flags SYN,RST SYN "
		default:
			panic(fmt.Sprintf("iptables has no words for %T", m)) // a match of a table that is not inet
		}
	}
	return source + destination + in + out + transport + more + "-j " + target(r.Verdict)
}

func exclamation(not bool) string {
	if not {
		return "! "
	}
	return ""
}

// iptables is in the order in which it is printed.
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

func target(v Verdict) string {
	switch v := v.(type) {
	case Accept:
		return "RETURN"
	case Drop:
		return "DROP"
	case Jump:
		return v.Chain
	case Masquerade:
		return "MASQUERADE"
	case ClampMSS:
		return "TCPMSS --clamp-mss-to-pmtu"
	case DNAT:
		_, to, _ := strings.Cut(v.String(), " to ")
		return "DNAT --to-destination " + to
	case SNAT:
		return "SNAT --to-source " + v.Address.String()
	}
	panic(fmt.Sprintf("iptables has no words for %T", v))
}

// restore is what iptables-restore --noflush reads.
func (t Table) restore() string {
	var b strings.Builder
	for _, name := range IPTablesTables {
		var chains, rules, jumps []string
		for _, c := range t.Chains {
			if c.Type != name {
				continue
			}
			chains = append(chains, ":"+c.Name+" - [0:0]\n")
			for _, r := range c.Rules {
				rules = append(rules, "-A "+c.Name+" "+r.IPTables()+"\n")
			}
			if c.Hook != "" {
				jumps = append(jumps, fmt.Sprintf("-I %s 1 -j %s\n", c.Hook.BuiltIn(), c.Name))
			}
		}
		if len(chains) > 0 {
			b.WriteString("*" + name + "\n" + strings.Join(slices.Concat(chains, rules, jumps), "") + "COMMIT\n")
		}
	}
	return b.String()
}

// IPTablesTables are those of iptables in which chains of ours are.
var IPTablesTables = []string{"raw", "filter", "nat"}

// IPTablesHead is the Head of a chain's image: the table of iptables, and from where it is jumped to.
func IPTablesHead(table string, from ...string) string {
	return strings.Join(append([]string{table}, from...), " ")
}
