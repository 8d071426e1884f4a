package firewall

import (
	"maps"
	"slices"
)

// Counted returns a copy of the table in which each [Drop], [Refuse] and [Up] with a Reason is a [Goto] to a chain of
// that reason. That chain counts the packet, and drops it, by a rule or by its end, refuses it, or leaves it to the
// namespace. If logs, it also reports some packets of the NIC to the nflog group [LogGroup]: without a listener, the
// kernel forgets the report.
//
// The counter is at the end of the way of a dropped packet, so a packet that passes pays nothing. A rule ends where a
// limit is exceeded, so the report and the drop are two rules. Where the end of the chain drops as well, one rule
// counts and reports.
func (t Table) Counted(nic string, logs bool) Table {
	ends := map[string]Verdict{} // by chain
	dropsBehind := t.endingInDrop()
	falls := map[string]bool{} // chains of a reason at whose end a packet would pass
	chains := slices.Clone(t.Chains)
	for i, c := range chains {
		rules := slices.Clone(c.Rules)
		for j, r := range rules {
			chain := ""
			switch v := r.Verdict.(type) {
			case Drop:
				if v.Reason != "" {
					chain = dropChain + string(v.Reason)
					ends[chain] = Drop{}
				}
			case Up:
				if v.Reason != "" {
					chain = upChain + string(v.Reason)
					ends[chain] = Up{Port: v.Port}
					falls[chain] = true
				}
			case Refuse:
				if v.Reason != "" {
					chain = dropChain + string(v.Reason)
					ends[chain] = Refuse{}
					falls[chain] = true
				}
			}
			if chain != "" {
				rules[j].Verdict = Goto{Chain: chain}
				falls[chain] = falls[chain] || !dropsBehind[c.Name]
			}
		}
		chains[i].Rules = rules
	}
	for _, r := range Reasons {
		for _, chain := range []string{dropChain + string(r.Reason), upChain + string(r.Reason)} {
			end, used := ends[chain]
			if !used {
				continue
			}
			rate, log := Rate{Packets: logPerSecond, Burst: logBurst}, Log{Prefix: LogPrefix(nic, r.Reason), Group: LogGroup}
			rules := []Rule{{Matches: []Match{Count{}}, Verdict: end}}
			if _, is := end.(Refuse); is {
				rules = append([]Rule{{Matches: []Match{Protocol{Number: ProtocolTCP}, Count{}}, Verdict: Refuse{Reset: true}}}, rules...)
			}
			switch {
			case logs && falls[chain]:
				rules = append([]Rule{{Matches: []Match{rate}, Verdict: log}}, rules...)
			case logs:
				rules = []Rule{{Matches: []Match{Count{}, rate}, Verdict: log}}
			}
			chains = append(chains, Chain{Name: chain, Rules: rules})
		}
	}
	t.Chains = chains
	return t
}

// endingInDrop are the chains at whose end a packet is dropped: base chains with that policy, and chains that are
// entered by [Goto] from such chains alone.
func (t Table) endingInDrop() map[string]bool {
	drops, passes := map[string]bool{}, map[string]bool{}
	var follow func(chain string, by map[string]bool)
	follow = func(chain string, by map[string]bool) {
		if by[chain] {
			return
		}
		by[chain] = true
		i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == chain })
		if i < 0 { // a chain of a reason, which Counted adds
			return
		}
		for _, r := range t.Chains[i].Rules {
			if v, is := r.Verdict.(Goto); is {
				follow(v.Chain, by)
			}
		}
	}
	for _, c := range t.Chains {
		if c.Hook != "" && c.Drops {
			follow(c.Name, drops)
		} else if c.Hook != "" {
			follow(c.Name, passes)
		}
		for _, r := range c.Rules {
			if v, is := r.Verdict.(Jump); is {
				follow(v.Chain, passes)
			}
		}
	}
	maps.DeleteFunc(drops, func(chain string, _ bool) bool { return passes[chain] })
	return drops
}
