package kernel

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAnswers: a system call that fails says nothing of what the kernel was asked. Setup on a kernel with nf_tables
// would otherwise take EINVAL of sendto for a kernel without.
func TestAnswers(t *testing.T) {
	if !answers(fmt.Errorf("%w (invalid argument)", unix.EINVAL), unix.EINVAL) {
		t.Error("an answer is none")
	}
	s := &socket{fd: -1, buffer: new([bufferSize]byte)}
	_, err := s.send([][]byte{make([]byte, 16)}, 0)
	if err == nil || answers(err, unix.EBADF) || err.Error() != "netlink send: bad file descriptor" {
		t.Errorf("a socket that is closed: %v", err)
	}
}
