package netlink

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The first call of nl.NativeEndian sets a variable without a lock. This call prevents a race between two
// concurrent Setups.
var _ = nl.NativeEndian()

// Flags of a request that adds an object (linux/netlink.h).
const (
	Create = unix.NLM_F_CREATE | unix.NLM_F_EXCL    // an object that exists is an error
	Put    = unix.NLM_F_CREATE | unix.NLM_F_REPLACE // an object that exists is replaced
)

// NewRequest returns a message (struct nlmsghdr, linux/netlink.h): a type, flags, and a body of parts. The
// socket sets the sequence number.
func NewRequest(kind uint16, flags int, parts ...nl.NetlinkRequestData) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(int(kind), flags)
	r.Data = parts
	return r
}

// Netfilter is struct nfgenmsg (linux/netfilter/nfnetlink.h), the header of all messages of nftables.
type Netfilter uint8

const SizeofNetfilter = 4

func (m Netfilter) Len() int { return SizeofNetfilter }

func (m Netfilter) Serialize() []byte { return []byte{byte(m), unix.NFNETLINK_V0, 0, 0} }
