package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

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

// States of sockets (net/tcp_states.h). A UDP socket without a peer has the state closed.
const (
	stateClosed = 7
	stateListen = 10
)

// Listeners returns the sockets of the namespace that wait for TCP connections or UDP datagrams, of all
// users. A protocol that the kernel has no sock_diag for has no listeners in the result.
//
// sock_diag(7)
func (n *Namespace) Listeners() ([]netstate.Listener, error) {
	s, err := openSocket(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("ask for the namespace's services: %w", err)
	}
	defer s.close()
	var all []netstate.Listener
	for _, p := range []struct {
		name          string
		number, state uint8
	}{{"tcp", unix.IPPROTO_TCP, stateListen}, {"udp", unix.IPPROTO_UDP, stateClosed}} {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			var list []netstate.Listener
			r := request(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, diagRequest{family, p.number, 1 << p.state})
			err := s.dump(r, func() { list = nil }, func(m []byte) error {
				l, err := parseListener(m)
				l.Protocol = p.name
				list = append(list, l)
				return err
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("ask for the namespace's %s services: %w", p.name, err)
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
