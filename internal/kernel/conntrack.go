package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
	"github.com/guestwire/guestwire/internal/syntax"
)

// errNoConntrack is the error of netstate.ConnectionsDel where the kernel tracks connections and reports none of them.
var errNoConntrack = errors.New("this kernel does not report which connections it tracks: it lacks nf_conntrack_netlink, which modprobe loads if the kernel has it")

// connection is a connection that the kernel tracks. The tuples are of the first packet and of the answers to it.
type connection struct {
	family          uint8
	original, reply tuple
	first, id, zone []byte      // CTA_TUPLE_ORIG, CTA_ID and CTA_ZONE, which name the connection
	master          []byte      // CTA_TUPLE_MASTER: first of the connection that made the kernel expect this one; nil: none
	carried         [2]*Carried // in the direction of original and of reply; nil: not counted
	// In nanoseconds since 1970; 0: not known. at is the time of the report.
	began, ended, at uint64
}

type tuple struct {
	source, destination netip.Addr
	protocol            uint8
	sourcePort, port    uint16 // port is the destination's; 0: the protocol has none
	icmp                *ICMP  // nil: another protocol
}

// parseConnection parses the message of a connection (struct nfgenmsg, CTA_*: linux/netfilter/nfnetlink_conntrack.h).
// The octets share memory with the message.
func parseConnection(m []byte) (connection, error) {
	c := connection{family: netlink.U8(m)}
	err := netlink.EachAttribute(m, netlink.SizeofNetfilter, func(kind uint16, v []byte) (err error) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			c.first = v
			c.original, err = parseTuple(v)
		case nl.CTA_TUPLE_REPLY:
			c.reply, err = parseTuple(v)
		case nl.CTA_ID:
			c.id = v
		case nl.CTA_ZONE:
			c.zone = v
		case tupleMaster:
			c.master = v
		case nl.CTA_COUNTERS_ORIG:
			c.carried[0], err = parseCarried(v)
		case nl.CTA_COUNTERS_REPLY:
			c.carried[1], err = parseCarried(v)
		case nl.CTA_TIMESTAMP:
			err = netlink.EachAttribute(v, 0, func(inner uint16, v []byte) error {
				switch inner {
				case nl.CTA_TIMESTAMP_START:
					c.began = be64(v)
				case nl.CTA_TIMESTAMP_STOP:
					c.ended = be64(v)
				}
				return nil
			})
		case timestampEvent:
			c.at = be64(v)
		}
		return err
	})
	return c, err
}

// Attributes of a connection (linux/netfilter/nfnetlink_conntrack.h).
const (
	tupleMaster    = 14 // CTA_TUPLE_MASTER
	timestampEvent = 27 // CTA_TIMESTAMP_EVENT, since Linux 6.14
)

// parseCarried parses what a connection has carried in one direction (CTA_COUNTERS_*).
func parseCarried(b []byte) (*Carried, error) {
	var c Carried
	err := netlink.EachAttribute(b, 0, func(kind uint16, v []byte) error {
		switch kind {
		case nl.CTA_COUNTERS_PACKETS:
			c.Packets = be64(v)
		case nl.CTA_COUNTERS_BYTES:
			c.Octets = be64(v)
		}
		return nil
	})
	return &c, err
}

// be64 is a number of 8 octets in network order; 0 if the value is shorter.
func be64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Identifier, type and code of a tuple of ICMP are three attributes, and those of ICMPv6 the next three
// (CTA_PROTO_ICMP_ID to CTA_PROTO_ICMPV6_CODE).
const firstICMP, lastICMP = 4, 9

func parseTuple(b []byte) (t tuple, err error) {
	err = netlink.EachAttribute(b, 0, func(kind uint16, part []byte) error {
		return netlink.EachAttribute(part, 0, func(inner uint16, v []byte) error {
			switch {
			case kind == nl.CTA_TUPLE_IP && (inner == nl.CTA_IP_V4_SRC || inner == nl.CTA_IP_V6_SRC):
				t.source = netlink.Addr(v)
			case kind == nl.CTA_TUPLE_IP && (inner == nl.CTA_IP_V4_DST || inner == nl.CTA_IP_V6_DST):
				t.destination = netlink.Addr(v)
			case kind == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_NUM:
				t.protocol = netlink.U8(v)
			case kind == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_SRC_PORT && len(v) == 2:
				t.sourcePort = binary.BigEndian.Uint16(v)
			case kind == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_DST_PORT && len(v) == 2:
				t.port = binary.BigEndian.Uint16(v)
			case kind == nl.CTA_TUPLE_PROTO && inner >= firstICMP && inner <= lastICMP:
				if t.icmp == nil {
					t.icmp = &ICMP{}
				}
				switch (inner - firstICMP) % 3 {
				case 0:
					if len(v) == 2 {
						t.icmp.ID = binary.BigEndian.Uint16(v)
					}
				case 1:
					t.icmp.Type = netlink.U8(v)
				case 2:
					t.icmp.Code = netlink.U8(v)
				}
			}
			return nil
		})
	})
	return t, err
}

// ends are the addresses of a connection: source and destination, of the first packet and of the answers.
func (c connection) ends() [4]netip.Addr {
	return [4]netip.Addr{c.original.source, c.original.destination, c.reply.source, c.reply.destination}
}

// named are the prefixes of an operation, in the order of ends.
func named(o netstate.ConnectionsDel) [4]netip.Prefix {
	return [4]netip.Prefix{o.OrigSrc, o.OrigDst, o.ReplySrc, o.ReplyDst}
}

// matches reports whether the connection is one of those that the operation names.
func (c connection) matches(o netstate.ConnectionsDel) bool {
	ends := c.ends()
	for i, want := range named(o) {
		if want.IsValid() && !want.Contains(ends[i]) {
			return false
		}
	}
	if o.Portless && c.original.port != 0 {
		return false
	}
	return len(o.Ports) == 0 || slices.ContainsFunc(o.Ports, func(ports infra.Ports) bool {
		p := syntax.Ports(ports).Full()
		return firewall.Transports[p.Protocol] == c.original.protocol && p.First <= c.original.port && c.original.port <= p.Last
	})
}

// encodeConnectionDel names the connection by its identity as well: another one may have taken its place.
func encodeConnectionDel(c connection) []byte {
	r := netlink.NewRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE, 0, netlink.Netfilter(c.family), nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, c.first), nl.NewRtAttr(nl.CTA_ID, c.id))
	if c.zone != nil {
		r.AddData(nl.NewRtAttr(nl.CTA_ZONE, c.zone))
	}
	return r.Serialize()
}

// forgetConnections deletes the connections of all operations. A kernel that tracks none is not asked for a list, as
// the list takes a module, and a walk through the connections of all namespaces.
//
// Kernels before Linux 6.4 refuse with EBUSY to delete what is in a flow table, and a flow table that is deleted lets
// go of its connections later. So forgetConnections tries again for some seconds.
func (n *Namespace) forgetConnections(ctx context.Context, ops []netstate.Op) ([]netlink.Failure, error) {
	if !tracks() {
		return nil, nil
	}
	if n.filter == nil {
		return nil, errNoConntrack
	}
	end := time.Now().Add(LetGo)
	for {
		found, err := listConnections(n.filter, ops)
		if err != nil {
			return nil, err
		}
		failures, err := deleteConnections(n.filter, found)
		busy := slices.ContainsFunc(failures, func(f netlink.Failure) bool { return errors.Is(f.Err, unix.EBUSY) })
		if err != nil || !busy || time.Now().After(end) {
			return failures, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tracks reports whether the kernel may track connections of the calling thread's namespace. The count cannot be read
// in user namespaces of older kernels: there, all that is known is whether the kernel has connection tracking.
func tracks() bool {
	if count, err := os.ReadFile(nft.TrackedCount); err == nil {
		return strings.TrimSpace(string(count)) != "0"
	}
	if _, err := os.Stat("/sys/module"); err != nil {
		return true
	}
	_, err := os.Stat("/sys/module/nf_conntrack")
	return !errors.Is(err, fs.ErrNotExist)
}

// LetGo is how long a connection may stay in a flow table that is deleted.
const LetGo = 5 * time.Second

// forgotten is a connection that an operation names.
type forgotten struct {
	message []byte // which deletes it
	op      int    // the operation's index
}

// listConnections returns the connections of all operations.
func listConnections(filter *netlink.Socket, ops []netstate.Op) (found []forgotten, err error) {
	index := indexConnections(ops)
	err = eachConnection(filter, func() { found = nil }, func(c connection) {
		if at := index.first(c); at >= 0 {
			found = append(found, forgotten{encodeConnectionDel(c), at})
		}
	})
	return found, err
}

// connectionIndex finds the operations that can name a connection, by an address that an operation names: a NIC can
// have thousands of addresses, and the kernel can track many thousands of connections.
type connectionIndex struct {
	ops []netstate.Op
	by  map[end][]int // of the zero end: those that name no address alone
}

// end is an address in its place in the list of ends.
type end struct {
	place   int
	address netip.Addr
}

func indexConnections(ops []netstate.Op) connectionIndex {
	index := connectionIndex{ops, map[end][]int{}}
	for i, op := range ops {
		var key end
		for place, prefix := range named(op.(netstate.ConnectionsDel)) {
			one := end{place, prefix.Addr()}
			if prefix.IsValid() && prefix.IsSingleIP() && (key == end{} || len(index.by[one]) < len(index.by[key])) {
				key = one
			}
		}
		index.by[key] = append(index.by[key], i)
	}
	return index
}

// first is the first operation that names the connection; -1: none does.
func (x connectionIndex) first(c connection) int {
	first := -1
	look := func(key end) {
		for _, i := range x.by[key] {
			if (first < 0 || i < first) && c.matches(x.ops[i].(netstate.ConnectionsDel)) {
				first = i
			}
		}
	}
	look(end{})
	for place, address := range c.ends() {
		look(end{place, address})
	}
	return first
}

// eachConnection calls f with the connections of the namespace, once more after each call of restart.
func eachConnection(filter *netlink.Socket, restart func(), f func(connection)) error {
	list := netlink.NewRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, netlink.Netfilter(unix.AF_UNSPEC))
	err := filter.Dump(list, restart, func(m []byte) error {
		c, err := parseConnection(m)
		if err == nil {
			f(c)
		}
		return err
	})
	if netlink.Answers(err, unix.EINVAL) {
		return errNoConntrack
	}
	if err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	return nil
}

// deleteConnections deletes the connections, and returns the first failure of each operation.
func deleteConnections(filter *netlink.Socket, found []forgotten) (first []netlink.Failure, err error) {
	failed := map[int]bool{}
	for batch := range slices.Chunk(found, connectionsAtOnce) {
		var messages [][]byte
		for _, f := range batch {
			messages = append(messages, f.message)
		}
		failures, err := filter.Send(messages, len(messages)-1)
		if err != nil {
			return first, err
		}
		for _, f := range failures {
			op := batch[f.Message].op
			if !failed[op] && !netlink.Answers(f.Err, unix.ENOENT) { // it has ended by itself
				failed[op] = true
				first = append(first, netlink.Failure{Message: op, Err: f.Err})
			}
		}
	}
	return first, nil
}

// connectionsAtOnce is how many deletions, of some 100 octets each, go into a batch. Their answers fit the default
// buffer.
const connectionsAtOnce = 256

// Connection is what the kernel knows of a connection's first packet: where it went, and To, where that is after
// translation. The port is 0 if the protocol has no ports.
type Connection struct {
	From      netip.Addr
	First, To netip.AddrPort
	Protocol  uint8
}

// CutConnections has the kernel forget the connections for which refused holds, and those that connection tracking
// expected because of them, such as FTP's data. It returns how many these were. What is forgotten passes by no flow
// table (flow_offload_lookup, net/netfilter/nf_flow_table_core.c). The error is unix.EBUSY if others are left, which
// are in a flow table, on a kernel before Linux 6.4.
//
// While the rules change, a packet may have passed the old ones, and is tracked a moment later. So CutConnections looks
// again until it finds none, some times at most. It deletes within locked, which may return an error instead.
func (n *Namespace) CutConnections(ctx context.Context, refused func(Connection) bool, locked func(func() error) error) (cut int, err error) {
	if !tracks() {
		return 0, nil
	}
	if n.filter == nil {
		return 0, errNoConntrack
	}
	ended := map[string]bool{} // by CTA_TUPLE_ORIG
	for range cutRounds {
		if err := ctx.Err(); err != nil {
			return cut, context.Cause(ctx)
		}
		found, err := listRefused(n.filter, refused, ended)
		if err != nil || len(found) == 0 {
			return cut, err
		}
		err = locked(func() error {
			failures, err := deleteConnections(n.filter, found)
			if cut += len(found) - len(failures); err == nil && len(failures) > 0 {
				err = fmt.Errorf("delete tracked connections: %w", failures[0].Err)
			}
			return err
		})
		if err != nil {
			return cut, err
		}
	}
	return cut, nil
}

const cutRounds = 4

// listRefused adds the connections for which refused holds to ended, and returns them, each as an operation of its own,
// and those that were expected because of one that has ended.
func listRefused(filter *netlink.Socket, refused func(Connection) bool, ended map[string]bool) (found []forgotten, err error) {
	type expected struct {
		message []byte
		master  string
	}
	var others []expected
	add := func(message []byte) { found = append(found, forgotten{message, len(found)}) }
	err = eachConnection(filter, func() { found, others = nil, nil }, func(c connection) {
		switch {
		case refused(Connection{c.original.source, netip.AddrPortFrom(c.original.destination, c.original.port), netip.AddrPortFrom(c.reply.source, c.reply.sourcePort), c.original.protocol}):
			ended[string(c.first)] = true
			add(encodeConnectionDel(c))
		case c.master != nil:
			others = append(others, expected{encodeConnectionDel(c), string(c.master)})
		}
	})
	for _, o := range others {
		if ended[o.master] {
			add(o.message)
		}
	}
	return found, err
}
