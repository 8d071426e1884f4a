// Package netlink is a socket of netlink(7) that sends many messages in one call, and reads attributes. It takes and
// returns octets; what they mean is for its callers.
package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Socket is a netlink socket that sends many messages in one call. The kernel works on all messages
// before the call returns, even if the sending process is killed meanwhile.
type Socket struct {
	fd     int
	seq    uint32
	buffer *[bufferSize]byte // for answers
	Most   int               // octets of a batch, for tests; 0: as many as the kernel takes
	// Ended returns an error when a Dump has to end before its answer has, of which it has read so many octets; nil: it
	// never has to.
	Ended func(octets int) error
}

const bufferSize = 64 << 10

// buffers are those of closed sockets. They are larger than all else that a Setup allocates.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func Open(protocol int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	s := &Socket{fd: fd, buffer: buffers.Get().(*[bufferSize]byte)}
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); err != nil {
			s.Close()
			return nil, fmt.Errorf("netlink socket option %d: %w", option, err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.Close()
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return s, nil
}

// Asked is the number of the messages that were sent.
func (s *Socket) Asked() uint32 { return s.seq }

// Descriptor is the socket's, for options.
func (s *Socket) Descriptor() int { return s.fd }

// LinkName returns the present name of the link with the index (netdevice(7), SIOCGIFNAME).
func (s *Socket) LinkName(index int) (string, error) {
	request, err := unix.NewIfreq("any") // the kernel replaces the name
	if err != nil {
		return "", err
	}
	request.SetUint32(uint32(index))
	if err := unix.IoctlIfreq(s.fd, unix.SIOCGIFNAME, request); err != nil {
		return "", err
	}
	return request.Name(), nil
}

// HasLink reports whether a link has the name. An ioctl would start modprobe(8) for a name that no link has.
func (s *Socket) HasLink(name string) (bool, error) {
	const skipStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS, linux/rtnetlink.h
	return s.Finds(NewRequest(unix.RTM_GETLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), Attr32(unix.IFLA_EXT_MASK, skipStatistics),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))))
}

// Finds reports whether there is the link that the question names.
func (s *Socket) Finds(question *nl.NetlinkRequest) (bool, error) {
	err := s.Dump(question, func() {}, func([]byte) error { return nil })
	if Answers(err, unix.ENODEV) {
		return false, nil
	}
	return err == nil, err
}

func (s *Socket) Close() {
	unix.Close(s.fd)
	buffers.Put(s.buffer)
	s.buffer = nil
}

// InBackground calls the close of a socket for which the kernel waits, 7 to 23 ms (synchronize_rcu), in a goroutine.
// What the caller has done is in force before. The goroutines of the process are few: at their number InBackground
// waits.
func InBackground(close func()) {
	closing <- struct{}{}
	go func() {
		close()
		<-closing
	}()
}

var closing = make(chan struct{}, 16)

// callError is the error of a system call on a socket. The kernel has not answered, so the errno says nothing of what
// was asked.
type callError struct {
	call string
	err  error
}

func (e *callError) Error() string { return e.call + ": " + e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// Answers reports whether err is the kernel's answer with the errno.
func Answers(err error, code unix.Errno) bool {
	var call *callError
	return errors.Is(err, code) && !errors.As(err, &call)
}

// The sizes of buffers in octets.
const (
	defaultBatch   = 64 << 10         // of the batches that fit a socket's default buffer
	defaultAnswers = 2 * defaultBatch // less than what fits a socket's default buffer
	answerSize     = 2 << 10          // more than the kernel counts for one answer
	sendOverhead   = 32               // that the kernel keeps of a send buffer (netlink_sendmsg, net/netlink/af_netlink.c)
)

// Failure is the kernel's error for one message of a batch. Message is the index in the batch.
type Failure struct {
	Message int
	Err     error
}

// Send sends all messages in one call and returns the failures.
//
// Acknowledge is the index of the one message that the kernel acknowledges, so that a lost batch is
// noticed. If one message fails, rtnetlink carries out the others, and nftables carries out none. Send
// sets the sequence numbers in messages.
func (s *Socket) Send(messages [][]byte, acknowledge int) ([]Failure, error) {
	first := s.Number(messages, acknowledge)
	batch := s.buffer[:0] // the answers come when all is sent; a larger batch takes a buffer from the heap
	for _, m := range messages {
		batch = append(batch, m...)
		for len(batch)%unix.NLMSG_ALIGNTO != 0 {
			batch = append(batch, 0)
		}
	}
	return s.SendBatch(batch, first, len(messages))
}

// Ask sends one message and returns the kernel's answer to it; nil is an acknowledgement. See Answers.
func (s *Socket) Ask(r *nl.NetlinkRequest) error {
	failures, err := s.Send([][]byte{r.Serialize()}, 0)
	if err == nil && len(failures) > 0 {
		err = failures[0].Err
	}
	return err
}

// Number sets the sequence numbers of messages, and asks for the acknowledgement. It returns the first number.
func (s *Socket) Number(messages [][]byte, acknowledge int) (first uint32) {
	first = s.seq + 1
	for i, m := range messages {
		s.seq++
		binary.NativeEndian.PutUint32(m[8:], s.seq)
		if i == acknowledge {
			flags := binary.NativeEndian.Uint16(m[6:])
			binary.NativeEndian.PutUint16(m[6:], flags|unix.NLM_F_ACK)
		}
	}
	return first
}

// SendParts is Send for messages of rtnetlink, which need not go in one call: if the kernel does not take them at once,
// each call has as many as it takes.
func (s *Socket) SendParts(messages [][]byte) ([]Failure, error) {
	size := 0
	for _, m := range messages {
		size += aligned(len(m))
	}
	room, err := s.Room(size)
	if err != nil {
		return nil, err
	}
	var failures []Failure
	for done := 0; done < len(messages); {
		end, octets := done+1, aligned(len(messages[done]))
		for end < len(messages) && octets+aligned(len(messages[end])) <= room {
			octets += aligned(len(messages[end]))
			end++
		}
		part, err := s.Send(messages[done:end], end-done-1)
		for _, f := range part {
			failures = append(failures, Failure{done + f.Message, f.Err})
		}
		if err != nil {
			return failures, err
		}
		done = end
	}
	return failures, nil
}

func aligned(size int) int { return (size + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// Room returns how many octets a batch can have, where size are wanted. It is less than size only without CAP_NET_ADMIN
// in the machine's user namespace.
func (s *Socket) Room(size int) (int, error) {
	room := 0
	for _, enlarge := range []bool{false, true} {
		if enlarge && size > room {
			if err := s.enlarge(size); err != nil {
				return 0, err
			}
		}
		buffer, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		if err != nil {
			return 0, fmt.Errorf("netlink send buffer: %w", err)
		}
		if room = buffer - sendOverhead; size <= room {
			break
		}
	}
	if s.Most > 0 {
		room = min(room, s.Most)
	}
	return room, nil
}

// TooLong is the error for a batch with that many octets.
func TooLong(size int) error {
	wanted := (size + sendOverhead + 1) / 2 // socket(7): the kernel doubles the number
	return &callError{"netlink send", fmt.Errorf("%d octets: %w: a process without CAP_NET_ADMIN on the machine needs there sysctl -w net.core.wmem_max=%d", size, unix.EMSGSIZE, wanted)}
}

// SendBatch is Send for messages that lie one after the other in batch, with sequence numbers from the first one on.
func (s *Socket) SendBatch(batch []byte, first uint32, messages int) ([]Failure, error) {
	// The kernel counts each octet that is sent twice. Each message can fail, and then is answered.
	if size := min(max(2*len(batch), messages*answerSize), math.MaxInt32/2); size > defaultAnswers {
		if err := s.enlarge(size); err != nil {
			return nil, err
		}
	}
	err := unix.Sendto(s.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == unix.EMSGSIZE {
		return nil, TooLong(len(batch))
	}
	if err != nil {
		return nil, &callError{"netlink send", err}
	}
	var failures []Failure
	acknowledged, overflowed := false, false
	for {
		answers, err := s.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if errors.Is(err, unix.ENOBUFS) && !overflowed {
			overflowed = true // the first answers are there, and the last ones are lost
			continue
		}
		if err != nil {
			return nil, err
		}
		for len(answers) > 0 {
			var a syscall.NetlinkMessage
			if a, answers, err = nextMessage(answers); err != nil {
				return nil, err
			}
			i := int(a.Header.Seq - first)
			if a.Header.Type != unix.NLMSG_ERROR || i < 0 || i >= messages {
				continue
			}
			if err := answerError(a); err != nil {
				failures = append(failures, Failure{i, err})
			} else {
				acknowledged = true
			}
		}
	}
	if !acknowledged && len(failures) == 0 {
		return nil, errors.New("netlink: the kernel did not acknowledge")
	}
	return failures, nil
}

// enlarge asks for larger buffers. Only a process with CAP_NET_ADMIN in the machine's user namespace gets all that it
// asks for. Others get at most twice net.core.wmem_max and rmem_max (socket(7)), which suffice for the rules of a NIC
// without long lists.
func (s *Socket) enlarge(size int) error {
	for _, buffer := range []struct {
		name          string
		forced, plain int
	}{
		{"send", unix.SO_SNDBUFFORCE, unix.SO_SNDBUF},
		{"receive", unix.SO_RCVBUFFORCE, unix.SO_RCVBUF},
	} {
		err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, buffer.forced, size)
		if err == unix.EPERM {
			err = enlargePlain(s.fd, buffer.plain, size)
		}
		if err != nil {
			return fmt.Errorf("netlink %s buffer: %w", buffer.name, err)
		}
	}
	return nil
}

// enlargePlain asks for a larger buffer without a capability. Such a call makes a buffer smaller if the default
// (wmem_default) is more than what the kernel gives, and the default does not come back: another socket shows that.
func enlargePlain(fd, option, size int) error {
	probe, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(probe)
	if err := unix.SetsockoptInt(probe, unix.SOL_SOCKET, option, size); err != nil {
		return err
	}
	given, err := unix.GetsockoptInt(probe, unix.SOL_SOCKET, option)
	if err != nil {
		return err
	}
	if has, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || has >= given {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size)
}

// Dump sends one request and calls f with the body of each message of the answer.
//
// If the namespace changed during the answer (NLM_F_DUMP_INTR), Dump sends the request again. For what one table of
// nftables holds, two equal answers suffice: then something else changed, such as pins in a set. In a list of all
// tables a chain that comes and goes elsewhere shifts the others, and answers may lack the same one. Before each try
// Dump calls reset, which must drop what f collected.
func (s *Socket) Dump(r *nl.NetlinkRequest, reset func(), f func([]byte) error) error {
	const ofOneTable = unix.NFNL_SUBSYS_NFTABLES << 8
	suffice := r.Type == ofOneTable|unix.NFT_MSG_GETRULE || r.Type == ofOneTable|unix.NFT_MSG_GETSETELEM
	var last uint64
	for try := range dumpTries {
		reset()
		var answer maphash.Hash
		answer.SetSeed(answerSeed)
		whole, err := s.dumpOnce(r, func(m []byte) error {
			answer.Write(m[min(SizeofNetfilter, len(m)):]) // before is the generation
			return f(m)
		})
		if err != nil || whole || suffice && try > 0 && answer.Sum64() == last {
			return err
		}
		last = answer.Sum64()
	}
	return errors.New("netlink: the namespace keeps changing while it is read: try again, or end the program that changes it all the time (ip monitor and nft monitor name what changes)")
}

const dumpTries = 64 // until a namespace that keeps changing is an error

var answerSeed = maphash.MakeSeed()

func (s *Socket) dumpOnce(r *nl.NetlinkRequest, f func([]byte) error) (whole bool, err error) {
	s.seq++
	r.Seq = s.seq
	if err := unix.Sendto(s.fd, r.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, &callError{"netlink send", err}
	}
	whole = true
	octets := 0
	for {
		if s.Ended != nil {
			if err := s.Ended(octets); err != nil {
				return false, err
			}
		}
		answers, err := s.receive(0)
		if err != nil {
			return false, err
		}
		octets += len(answers)
		for len(answers) > 0 {
			var a syscall.NetlinkMessage
			if a, answers, err = nextMessage(answers); err != nil {
				return false, err
			}
			if a.Header.Seq != s.seq {
				continue
			}
			if a.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
				whole = false
			}
			switch {
			case a.Header.Type == unix.NLMSG_DONE:
				return whole, doneError(a)
			case a.Header.Type == unix.NLMSG_ERROR:
				return whole, answerError(a)
			}
			if err := f(a.Data); err != nil {
				return false, err
			}
			if a.Header.Flags&unix.NLM_F_MULTI == 0 {
				return whole, nil
			}
		}
	}
}

// receive returns the messages of one datagram, until the next call.
func (s *Socket) receive(flags int) ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer[:], flags)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &callError{"netlink receive", err}
		}
		return s.buffer[:n], nil
	}
}

// nextMessage returns the first message of a datagram and what is after it. The message shares memory with the
// datagram.
func nextMessage(b []byte) (m syscall.NetlinkMessage, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, ErrCutShort
	}
	m.Header = syscall.NlMsghdr{Len: U32(b), Type: U16(b[4:]), Flags: U16(b[6:]), Seq: U32(b[8:]), Pid: U32(b[12:])}
	size := int(m.Header.Len)
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return m, nil, ErrCutShort
	}
	m.Data = b[unix.SizeofNlMsghdr:size]
	return m, b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):], nil
}

// doneError is the error at the end of a dump, or nil (NLMSG_DONE: an errno, then attributes).
func doneError(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return nil
	}
	return errnoOf(m.Data)
}

// errnoOf is a negative errno of 4 octets as an error; nil for 0.
func errnoOf(data []byte) error {
	if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// answerError is the errno of an NLMSG_ERROR, with the kernel's text if the kernel sent one; nil for an
// acknowledgement.
//
// struct nlmsgerr, linux/netlink.h: errno, header of the request, attributes (NLMSGERR_ATTR_MSG). With
// NETLINK_CAP_ACK the kernel does not repeat the request's body.
func answerError(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return errors.New("netlink: an answer was cut short")
	}
	err := errnoOf(m.Data)
	const header = 4 + unix.SizeofNlMsghdr
	if err == nil || m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 || len(m.Data) < header {
		return err
	}
	text := ""
	parseErr := EachAttribute(m.Data, header, func(kind uint16, v []byte) error {
		if kind == nl.NLMSGERR_ATTR_MSG {
			text = unix.ByteSliceToString(v)
		}
		return nil
	})
	if parseErr != nil || text == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, text)
}
