package router

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// SourcePorts are the source ports of the guest's connections behind a masquerade, by protocol. An answer goes to the
// guest if connection tracking knows a connection of the guest from the port that the answer is for. So the guest may
// have a port only if the port is forwarded to the guest, or if the namespace does not use it. Otherwise the guest
// could send from the port of a service of the namespace to a client, and get what the client sends to the service next
// (CVE-2021-3773).
//
// The guest does not have the ports that the kernel gives to clients, even if they are forwarded: a TCP connection of
// the namespace that is older than the rules is not known. Of UDP it has them. What arrives at a forwarded port and
// belongs to no known exchange is for the guest in any case, and if the namespace has sent from that port to the same
// peer, connection tracking gives the guest another one.
type SourcePorts struct {
	everything bool // all that arrives at the NIC is for the guest, but what is excluded
	// kept are the ports that stay the same in packets that leave by the NIC.
	kept map[string][]span
	// byNIC are for other packets that leave by the NIC, others for those that leave by another link, or go back to
	// the guest.
	byNIC, others map[string]span
	// reserve says that the kernel may give ports of spare to sockets of the namespace, unless they are reserved.
	reserve bool
}

// span is a range of ports, both ends included.
type span struct{ first, last uint16 }

func (r span) len() int { return int(r.last) - int(r.first) + 1 }

var (
	// clients are the ports that a kernel gives to clients by default (net.ipv4.ip_local_port_range).
	clients = span{32768, 60999}
	// spare are the ports above.
	spare = span{61000, 65535}
)

const (
	firstUnprivileged = 1024
	// enoughPorts is the least number of ports that a range must have.
	enoughPorts = 1024
)

// portSet are ports, as ranges in order that do not touch.
type portSet []span

// add adds the ports of a range.
func (s *portSet) add(r span) {
	all := append(slices.Clone(*s), r)
	slices.SortFunc(all, func(a, b span) int { return int(a.first) - int(b.first) })
	merged := all[:1]
	for _, n := range all[1:] {
		if last := &merged[len(merged)-1]; int(n.first) <= int(last.last)+1 {
			last.last = max(last.last, n.last)
		} else {
			merged = append(merged, n)
		}
	}
	*s = merged
}

// cut removes the ports of a range.
func (s *portSet) cut(r span) {
	var rest portSet
	for _, o := range *s {
		if r.last < o.first || o.last < r.first {
			rest = append(rest, o)
			continue
		}
		if o.first < r.first {
			rest = append(rest, span{o.first, r.first - 1})
		}
		if r.last < o.last {
			rest = append(rest, span{r.last + 1, o.last})
		}
	}
	*s = rest
}

// cutEach removes ports, which may be as many as there are.
func (s *portSet) cutEach(ports []uint16) {
	slices.Sort(ports)
	var rest portSet
	for _, o := range *s {
		at, _ := slices.BinarySearch(ports, o.first)
		first := int(o.first)
		for ; at < len(ports) && ports[at] <= o.last; at++ {
			if first < int(ports[at]) {
				rest = append(rest, span{uint16(first), ports[at] - 1})
			}
			first = int(ports[at]) + 1
		}
		if first <= int(o.last) {
			rest = append(rest, span{uint16(first), o.last})
		}
	}
	*s = rest
}

// include adds the ports of the protocol.
func (s *portSet) include(list []infra.Ports, protocol string) {
	for _, p := range list {
		if p := syntax.Ports(p).Full(); p.Protocol == protocol {
			s.add(span{p.First, p.Last})
		}
	}
}

// remove removes the ports of the protocol.
func (s *portSet) remove(list []infra.Ports, protocol string) {
	for _, p := range list {
		if p := syntax.Ports(p).Full(); p.Protocol == protocol {
			s.cut(span{p.First, p.Last})
		}
	}
}

// portsFrom are the ports from first on.
func (s portSet) portsFrom(first uint16) portSet {
	rest := slices.Clone(s)
	rest.cut(span{0, first - 1})
	return rest
}

// largest is the range with the most ports; the zero span has one port, 0, and stands for none.
func largest(list []span) span {
	if len(list) == 0 {
		return span{}
	}
	return slices.MaxFunc(list, func(a, b span) int { return a.len() - b.len() })
}

// InUse are the ports that sockets of the namespace have, or may get.
type InUse struct {
	Clients   string               // net.ipv4.ip_local_port_range; empty: not known
	Older     []netstate.LocalPort // of connections that are older than the rules
	Listeners []netstate.Listener
}

// clientPorts are the ports that the kernel gives to clients.
func clientPorts(sysctl string) span {
	var first, last uint16
	if n, err := fmt.Sscan(sysctl, &first, &last); n == 2 && err == nil && first <= last {
		return span{first, last}
	}
	return clients // the kernel does not show its range here
}

// ChoosePorts chooses the source ports. Ports of services and of older connections of the namespace are left out, as
// connection tracking does not know these connections.
func ChoosePorts(b infra.Masquerade, open []infra.Ports, used InUse) SourcePorts {
	c := SourcePorts{
		everything: b.Ports == nil && b.Sidecar == nil,
		kept:       map[string][]span{}, byNIC: map[string]span{}, others: map[string]span{},
	}
	given := clientPorts(used.Clients)
	above := span{given.last + 1, 65535}
	if given.last > 65535-enoughPorts {
		above, c.reserve = spare, true
	}
	for protocol := range firewall.Transports {
		var forwarded, free portSet
		switch {
		case c.everything:
			forwarded.add(span{1, 65535})
		case b.Sidecar == nil:
			forwarded.include(b.Ports, protocol)
		}
		free.add(span{firstUnprivileged, 65535})
		kept := slices.Clone(forwarded)
		var older, served []uint16
		for _, l := range used.Older {
			if l.Protocol == protocol {
				older = append(older, l.Port)
			}
		}
		for _, s := range []*portSet{&kept, &forwarded, &free} {
			switch {
			case s == &kept && protocol == "udp": // see SourcePorts
			case !c.reserve:
				s.cut(given)
			case given.first < above.first:
				s.cut(span{given.first, above.first - 1})
			}
			s.remove(b.Excluded, protocol)
			s.cutEach(older)
		}
		free.remove(open, protocol)
		for _, l := range used.Listeners {
			if l.Protocol == protocol && !l.Address.IsLoopback() { // nothing from outside comes to a loopback address
				served = append(served, l.Port)
			}
		}
		free.cutEach(served)
		c.kept[protocol] = kept
		c.others[protocol] = above
		if most := largest(free.portsFrom(above.first)); most.len() >= enoughPorts {
			c.others[protocol] = most
		} else if most := largest(free); most.first != 0 {
			c.others[protocol] = most
		}
		c.byNIC[protocol] = c.others[protocol]
		if most := largest(forwarded.portsFrom(firstUnprivileged)); c.everything && most.first != 0 && most.len() > c.others[protocol].len() {
			c.byNIC[protocol] = most
		}
	}
	return c
}

// OutsideClients leaves out the ports that the kernel gives to clients: no older connection with one matters.
func OutsideClients(clients string, list []netstate.LocalPort) []netstate.LocalPort {
	given := clientPorts(clients)
	return slices.DeleteFunc(list, func(l netstate.LocalPort) bool {
		return given.first <= l.Port && l.Port <= given.last && l.Port < spare.first
	})
}

// Left is the number of ports for the guest's connections by other links than the NIC, and whether it is enough.
func (c SourcePorts) Left(protocol string) (n int, enough bool) {
	n = c.others[protocol].len()
	return n, n >= enoughPorts
}

// Reserve adds the spare ports to a list of reserved ones (net.ipv4.ip_local_reserved_ports), in the words in which
// the kernel prints the list. Not needed: the kernel gives none of the guest's ports to sockets of the namespace.
func (c SourcePorts) Reserve(list string) (value string, needed bool) {
	if !c.reserve {
		return list, false
	}
	var s portSet
	s.add(spare)
	for word := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(word, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA == nil && errB == nil {
			s.add(span{uint16(a), uint16(b)})
		}
	}
	var words []string
	for _, r := range s {
		words = append(words, r.String())
	}
	return strings.Join(words, ","), true
}

func (r span) String() string {
	if r.first == r.last {
		return fmt.Sprint(r.first)
	}
	return fmt.Sprintf("%d-%d", r.first, r.last)
}
