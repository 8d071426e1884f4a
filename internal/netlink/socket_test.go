package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestAnswers: a system call that fails says nothing of what the kernel was asked. Setup on a kernel with nf_tables
// would otherwise take EINVAL of sendto for a kernel without.
func TestAnswers(t *testing.T) {
	if !Answers(fmt.Errorf("%w (invalid argument)", unix.EINVAL), unix.EINVAL) {
		t.Error("an answer is none")
	}
	s := &Socket{fd: -1, buffer: new([bufferSize]byte)}
	_, err := s.Send([][]byte{make([]byte, 16)}, 0)
	if err == nil || Answers(err, unix.EBADF) || err.Error() != "netlink send: bad file descriptor" {
		t.Errorf("a socket that is closed: %v", err)
	}
}

// answer is the kernel's answer to a request, with attributes.
func answer(data []byte) syscall.NetlinkMessage {
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS}, Data: data}
}

// refusal is the body of an answer: EEXIST, with a text.
var refusal = slices.Concat(nl.Uint32Attr(^uint32(unix.EEXIST)+1), make([]byte, unix.SizeofNlMsghdr),
	nl.NewRtAttr(nl.NLMSGERR_ATTR_MSG, nl.ZeroTerminated("there is one")).Serialize())

func TestAnswerError(t *testing.T) {
	if err := answerError(answer(make([]byte, unix.SizeofNlMsgerr))); err != nil {
		t.Errorf("an acknowledgement: %v", err)
	}
	err := answerError(answer(refusal))
	if !errors.Is(err, unix.EEXIST) || err.Error() != "file exists (there is one)" {
		t.Errorf("have %v", err)
	}
	// The last attribute may lack its padding.
	if err := answerError(answer(refusal[:len(refusal)-1])); !errors.Is(err, unix.EEXIST) {
		t.Errorf("have %v", err)
	}
}

// TestBatchInUserNamespace: batches above the default buffer's size are sent also by a process without CAP_NET_ADMIN in
// the machine's user namespace, as in a rootless container. What is too large there is reported.
func TestBatchInUserNamespace(t *testing.T) {
	const child = "GUESTWIRE_BATCH"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBatchInUserNamespace$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, os.ErrPermission) {
			nstest.Skip(t, "no user namespace can be made here")
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for size, want := range map[int]error{2 * defaultBatch: nil, 300 << 10: nil, 64 << 20: unix.EMSGSIZE} {
		s, err := Open(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		// Messages that do nothing (netlink(7)).
		messages := make([][]byte, size/unix.SizeofNlMsghdr)
		for i := range messages {
			m := make([]byte, unix.SizeofNlMsghdr)
			binary.NativeEndian.PutUint32(m, unix.SizeofNlMsghdr)
			binary.NativeEndian.PutUint16(m[4:], unix.NLMSG_NOOP)
			binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST)
			messages[i] = m
		}
		failures, err := s.Send(messages, len(messages)-1)
		if !errors.Is(err, want) || len(failures) > 0 {
			t.Errorf("%d octets: %v, %v; want %v", size, failures, err, want)
		}
	}
}

// TestNextMessage: a datagram is parsed message by message; what is cut short is an error.
func TestNextMessage(t *testing.T) {
	message := func(size uint32, body ...byte) []byte {
		b := make([]byte, unix.SizeofNlMsghdr)
		b[0], b[4] = byte(size), 7
		return append(b, body...)
	}
	b := append(message(17, 1, 0, 0, 0), message(18, 2, 3)...)
	first, rest, err := nextMessage(b)
	if err != nil || first.Header.Type != 7 || !reflect.DeepEqual(first.Data, []byte{1}) {
		t.Errorf("the first: %+v, %v", first, err)
	}
	second, rest, err := nextMessage(rest)
	if err != nil || !reflect.DeepEqual(second.Data, []byte{2, 3}) || len(rest) != 0 {
		t.Errorf("the second: %+v, %v; left %x", second, err, rest)
	}
	for _, bad := range [][]byte{message(15), message(17), message(16)[:15]} {
		if _, _, err := nextMessage(bad); err == nil {
			t.Errorf("%x is no error", bad)
		}
	}
}

// FuzzAnswers: whatever a datagram has is parsed, or is an error.
func FuzzAnswers(f *testing.F) {
	for _, seed := range [][]byte{make([]byte, unix.SizeofNlMsgerr), refusal, make([]byte, 4), {17, 0, 0, 0, 7, 0}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = answerError(answer(b))
		_ = doneError(answer(b))
		for rest := b; len(rest) > 0; {
			m, more, err := nextMessage(rest)
			if err != nil {
				break
			}
			if len(more) >= len(rest) {
				t.Fatalf("%x: the rest of %x", more, rest)
			}
			_ = EachAttribute(m.Data, 0, func(uint16, []byte) error { return nil })
			rest = more
		}
	})
}

func TestMain(m *testing.M) { nstest.Main(m) }
