package nstest

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Sniffer sees the frames of all links of a namespace, in both directions (packet(7)).
type Sniffer struct {
	t      testing.TB
	fd     int
	buffer []byte
	about  [128]byte
}

// Sniffed is a frame, with its VLAN tags.
type Sniffed struct {
	Link     int // its index
	Outgoing bool
	Frame    []byte
}

// Sniff listens until the test ends. Nothing may have been lost by then.
func (n *Namespace) Sniff(t testing.TB) *Sniffer {
	t.Helper()
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in the network's order
	s := &Sniffer{t: t, fd: -1, buffer: make([]byte, 1<<16)}
	err := n.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		return err
	})
	if err == nil {
		err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		if err == unix.EPERM { // the root of a user namespace gets no more than rmem_max
			err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20)
		}
		err = errors.Join(err,
			unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	}
	if err != nil {
		t.Fatalf("packet socket: %v", err)
	}
	t.Cleanup(func() {
		if stats, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil || stats.Drops > 0 {
			t.Errorf("packet socket lost %+v, %v; want nothing", stats, err)
		}
		unix.Close(s.fd)
	})
	return s
}

// Next is the next frame; not ok if there is none for some time.
func (s *Sniffer) Next() (seen Sniffed, ok bool) {
	for {
		size, about, _, from, err := unix.Recvmsg(s.fd, s.buffer, s.about[:], 0)
		switch link, _ := from.(*unix.SockaddrLinklayer); {
		case err == unix.EINTR || err == unix.ENETDOWN:
		case err == unix.EAGAIN:
			return Sniffed{}, false
		case err != nil || link == nil:
			s.t.Errorf("packet socket: %v", err)
			return Sniffed{}, false
		default:
			frame := slices.Insert(slices.Clone(s.buffer[:size]), min(12, size), outerTag(s.about[:about])...)
			return Sniffed{link.Ifindex, link.Pkttype == unix.PACKET_OUTGOING, frame}, true
		}
	}
}

// outerTag returns the outer VLAN tag that the kernel has taken out of a frame, by struct tpacket_auxdata
// (linux/if_packet.h); nil: the kernel has taken none.
func outerTag(control []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		status, tag, kind := binary.NativeEndian.Uint32(m.Data), binary.NativeEndian.Uint16(m.Data[16:]), binary.NativeEndian.Uint16(m.Data[18:])
		if status&unix.TP_STATUS_VLAN_VALID != 0 {
			return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, kind), tag)
		}
	}
	return nil
}

// Until returns what comes until last says that a frame is the last one. Where none comes for some time
// it calls again, to send that once more: a busy machine loses frames.
func (s *Sniffer) Until(last func(Sniffed) bool, again func()) []Sniffed {
	s.t.Helper()
	var all []Sniffed
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		seen, ok := s.Next()
		if !ok {
			again()
			continue
		}
		all = append(all, seen)
		if last(seen) {
			return all
		}
	}
	s.t.Fatalf("the frame that was waited for does not come, after %d others", len(all))
	return nil
}

// Injector sends frames from a link of the namespace, as they are, in the caller's thread.
func (n *Namespace) Injector(t testing.TB, link int) func(frames ...[]byte) error {
	t.Helper()
	fd := -1
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatalf("packet socket: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(frames ...[]byte) error {
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: link}); err != nil {
				return err
			}
		}
		return nil
	}
}
