package wiring

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// portChoice are the source ports of the guest's connections behind a masquerade, by protocol. An answer goes to the
// guest if connection tracking knows a connection of the guest from the port that the answer is for. So the guest may
// have a port only if the port is forwarded to the guest, or if the namespace does not use it. Otherwise the guest could
// send from the port of a service of the namespace to a client, and get what the client sends to the service next
// (CVE-2021-3773).
type portChoice struct {
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
	// enoughPorts is the least number of ports that a range shall have.
	enoughPorts = 1024
)

// portSet says of each port whether the port is in the set.
type portSet [1 << 16]bool

func (s *portSet) put(r span, in bool) {
	for p := int(r.first); p <= int(r.last); p++ {
		s[p] = in
	}
}

// remove removes the ports of the protocol.
func (s *portSet) remove(list []infra.Ports, protocol string) {
	for _, p := range list {
		if p.Transport() == protocol {
			s.put(span{p.First, p.End()}, false)
		}
	}
}

// spans are the ports of the set from first on, as ranges in order.
func (s *portSet) spans(first int) []span {
	var list []span
	for p := first; p < len(s); p++ {
		switch {
		case !s[p]:
		case p > first && s[p-1]:
			list[len(list)-1].last = uint16(p)
		default:
			list = append(list, span{uint16(p), uint16(p)})
		}
	}
	return list
}

// largest is the range with the most ports; the zero span has one port, 0, and stands for none.
func largest(list []span) span {
	if len(list) == 0 {
		return span{}
	}
	return slices.MaxFunc(list, func(a, b span) int { return a.len() - b.len() })
}

// clientPorts are the ports that the kernel gives to clients in the namespace as found.
func clientPorts(found netstate.Snapshot) span {
	var first, last uint16
	if n, err := fmt.Sscan(found.Sysctls[netstate.PortRange], &first, &last); n == 2 && err == nil && first <= last {
		return span{first, last}
	}
	return clients // a journal of an earlier version does not tell
}

// choosePorts chooses the source ports. Ports of services and of older connections of the namespace are left out, as
// connection tracking does not know these connections.
func choosePorts(b infra.Masquerade, open []infra.Ports, found netstate.Snapshot) portChoice {
	c := portChoice{
		everything: b.Ports == nil && b.Sidecar == nil,
		kept:       map[string][]span{}, byNIC: map[string]span{}, others: map[string]span{},
	}
	given := clientPorts(found)
	above := span{given.last + 1, 65535}
	if given.last > 65535-enoughPorts {
		above, c.reserve = spare, true
	}
	for protocol := range transports {
		var forwarded, free portSet
		switch {
		case c.everything:
			forwarded.put(span{1, 65535}, true)
		case b.Sidecar == nil:
			for _, p := range b.Ports {
				if p.Transport() == protocol {
					forwarded.put(span{p.First, p.End()}, true)
				}
			}
		}
		free.put(span{firstUnprivileged, 65535}, true)
		for _, s := range []*portSet{&forwarded, &free} {
			ours := *s
			s.put(given, false)
			if c.reserve {
				for p := int(above.first); p <= int(above.last); p++ {
					s[p] = ours[p]
				}
			}
			s.remove(b.Excluded, protocol)
			for _, l := range found.Connections {
				if l.Protocol == protocol {
					s[l.Port] = false
				}
			}
		}
		free.remove(open, protocol)
		for _, l := range found.Listeners {
			if l.Protocol == protocol && !l.Address.IsLoopback() { // nothing from outside comes to a loopback address
				free[l.Port] = false
			}
		}
		c.kept[protocol] = forwarded.spans(1)
		c.others[protocol] = above
		if most := largest(free.spans(int(above.first))); most.len() >= enoughPorts {
			c.others[protocol] = most
		} else if most := largest(free.spans(firstUnprivileged)); most.first != 0 {
			c.others[protocol] = most
		}
		c.byNIC[protocol] = c.others[protocol]
		if most := largest(forwarded.spans(firstUnprivileged)); c.everything && most.first != 0 && most.len() > c.others[protocol].len() {
			c.byNIC[protocol] = most
		}
	}
	return c
}

// OutsideClients leaves out the ports that no guest gets in any case: those that the kernel gives to clients.
func OutsideClients(found netstate.Snapshot, list []netstate.LocalPort) []netstate.LocalPort {
	given := clientPorts(found)
	return slices.DeleteFunc(list, func(l netstate.LocalPort) bool {
		return given.first <= l.Port && l.Port <= given.last && l.Port < spare.first
	})
}

// reserved adds the spare ports to a list of reserved ones (net.ipv4.ip_local_reserved_ports), in the words in which
// the kernel prints the list.
func reserved(list string) string {
	var s portSet
	s.put(spare, true)
	for word := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(word, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA == nil && errB == nil {
			s.put(span{uint16(a), uint16(b)}, true)
		}
	}
	var words []string
	for _, r := range s.spans(0) {
		words = append(words, r.String())
	}
	return strings.Join(words, ",")
}

func (r span) String() string {
	if r.first == r.last {
		return fmt.Sprint(r.first)
	}
	return fmt.Sprintf("%d-%d", r.first, r.last)
}
