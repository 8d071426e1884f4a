package kernel

import (
	"encoding/binary"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
)

// rtnl is held for writes to sysctls and for batches of rtnetlink that delete no link. The kernel has one lock for the
// links of all namespaces, and a write to a sysctl such as forwarding does not sleep until that lock is free: it tries,
// and begins again at once (restart_syscall in net/ipv6/addrconf.c), for as long as another thread has it. Setups of
// several namespaces in one process would use up the processors so, and together be slower than one after the other.
var rtnl sync.Mutex

// sendRoute is socket.sendParts of rtnetlink, with rtnl held. A batch that deletes links goes without rtnl: it waits
// for the kernel's grace periods, also after the kernel has given its lock back.
func sendRoute(route *netlink.Socket, messages [][]byte) ([]netlink.Failure, error) {
	if !slices.ContainsFunc(messages, deletesLink) {
		rtnl.Lock()
		defer rtnl.Unlock()
	}
	return route.SendParts(messages)
}

func deletesLink(message []byte) bool {
	return binary.NativeEndian.Uint16(message[4:]) == unix.RTM_DELLINK
}
