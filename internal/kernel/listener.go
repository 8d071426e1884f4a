package kernel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// diagRequest is struct inet_diag_req_v2 (linux/inet_diag.h) that asks for all sockets of a family, a
// protocol, and a set of states (bit n: state n).
type diagRequest struct {
	family, protocol uint8
	states           uint32
}

const (
	sizeofDiagRequest = 56 // struct inet_diag_req_v2
	sizeofDiagMessage = 72 // struct inet_diag_msg
)

func (r diagRequest) Len() int { return sizeofDiagRequest }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, sizeofDiagRequest)
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[4:], r.states)
	return b
}

// States of sockets (net/tcp_states.h). A UDP socket without a peer has the state closed, one with a peer the state
// established.
const (
	stateEstablished = 1
	stateTimeWait    = 6
	stateClosed      = 7
	stateListen      = 10
	stateClosing     = 11
)

// connected are the states of TCP connections whose peer may still send.
const connected = 1<<(stateClosing+1) - 1<<stateEstablished - 1<<stateTimeWait - 1<<stateClosed - 1<<stateListen

// Listeners returns the sockets of the namespace that wait for TCP connections or UDP datagrams, of all
// users. A protocol that the kernel has no sock_diag for has no listeners in the result.
//
// sock_diag(7)
func (n *Namespace) Listeners() ([]netstate.Listener, error) {
	return readSockets([]socketKind{{"tcp", unix.IPPROTO_TCP, 1 << stateListen}, {"udp", unix.IPPROTO_UDP, 1 << stateClosed}})
}

// LocalPorts returns the local ports of the namespace's TCP connections and of its UDP sockets with a peer, of all
// users, each port once.
//
// sock_diag(7)
func (n *Namespace) LocalPorts() ([]netstate.LocalPort, error) {
	sockets, err := readSockets([]socketKind{{"tcp", unix.IPPROTO_TCP, connected}, {"udp", unix.IPPROTO_UDP, 1 << stateEstablished}})
	var list []netstate.LocalPort
	for _, s := range sockets {
		list = append(list, netstate.LocalPort{Protocol: s.Protocol, Port: s.Port})
	}
	slices.SortFunc(list, func(a, b netstate.LocalPort) int {
		return cmp.Or(strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(list), err
}

// socketKind are sockets of a protocol in a set of states (bit n: state n).
type socketKind struct {
	name   string
	number uint8
	states uint32
}

// readSockets reads sockets of the thread's namespace, of IPv4 and IPv6.
func readSockets(kinds []socketKind) ([]netstate.Listener, error) {
	s, err := netlink.Open(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("ask for the namespace's sockets: %w", err)
	}
	defer s.Close()
	var all []netstate.Listener
	for _, p := range kinds {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			var list []netstate.Listener
			r := netlink.NewRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, diagRequest{family, p.number, p.states})
			err := s.Dump(r, func() { list = nil }, func(m []byte) error {
				l, err := parseListener(m)
				l.Protocol = p.name
				list = append(list, l)
				return err
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("ask for the namespace's %s sockets: %w", p.name, err)
			}
			all = append(all, list...)
		}
	}
	return all, nil
}

// parseListener parses struct inet_diag_msg (linux/inet_diag.h): port and address are in network order. The
// protocol is not in the message.
func parseListener(m []byte) (l netstate.Listener, err error) {
	if len(m) < sizeofDiagMessage {
		return l, errors.New("netlink: a socket's message was cut short")
	}
	l.Port = binary.BigEndian.Uint16(m[4:])
	if m[0] == unix.AF_INET {
		l.Address = netip.AddrFrom4([4]byte(m[8:12]))
	} else {
		l.Address = netip.AddrFrom16([16]byte(m[8:24])).Unmap() // an IPv6 socket bound to an IPv4 address
	}
	return l, nil
}
