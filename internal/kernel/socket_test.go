package kernel

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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
