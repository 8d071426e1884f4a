package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// errNoConntrack is the error of netstate.ConnectionsDel where the kernel tracks connections and tells nobody of them.
var errNoConntrack = errors.New("this kernel does not tell which connections it tracks: it lacks nf_conntrack_netlink")

// connection is a connection that the kernel tracks. The tuples are of the first packet and of the answers to it.
type connection struct {
	family          uint8
	original, reply tuple
	first, id, zone []byte // CTA_TUPLE_ORIG, CTA_ID and CTA_ZONE, which name the connection
}

type tuple struct {
	source, destination netip.Addr
	protocol            uint8
	port                uint16 // the destination's; 0: the protocol has none
}

// parseConnection parses the message of a connection (struct nfgenmsg, CTA_*: linux/netfilter/nfnetlink_conntrack.h). The
// octets share memory with the message.
func parseConnection(m []byte) (connection, error) {
	c := connection{family: u8(m)}
	err := eachAttribute(m, sizeofNfgenmsg, func(kind uint16, v []byte) (err error) {
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
		}
		return err
	})
	return c, err
}

func parseTuple(b []byte) (t tuple, err error) {
	err = eachAttribute(b, 0, func(kind uint16, part []byte) error {
		return eachAttribute(part, 0, func(inner uint16, v []byte) error {
			switch {
			case kind == nl.CTA_TUPLE_IP && (inner == nl.CTA_IP_V4_SRC || inner == nl.CTA_IP_V6_SRC):
				t.source = addr(v)
			case kind == nl.CTA_TUPLE_IP && (inner == nl.CTA_IP_V4_DST || inner == nl.CTA_IP_V6_DST):
				t.destination = addr(v)
			case kind == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_NUM:
				t.protocol = u8(v)
			case kind == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_DST_PORT && len(v) == 2:
				t.port = binary.BigEndian.Uint16(v)
			}
			return nil
		})
	})
	return t, err
}

// is says whether the connection is one of those that the operation names.
func (c connection) is(o netstate.ConnectionsDel) bool {
	for _, side := range []struct {
		want netip.Prefix
		have netip.Addr
	}{{o.OrigSrc, c.original.source}, {o.OrigDst, c.original.destination}, {o.ReplySrc, c.reply.source}, {o.ReplyDst, c.reply.destination}} {
		if side.want.IsValid() && !side.want.Contains(side.have) {
			return false
		}
	}
	return len(o.Ports) == 0 || slices.ContainsFunc(o.Ports, func(p infra.Ports) bool {
		return firewall.Transports[p.Transport()] == c.original.protocol && p.First <= c.original.port && c.original.port <= p.End()
	})
}

// encodeConnectionDel names the connection by its identity as well: another one may have taken its place.
func encodeConnectionDel(c connection) []byte {
	r := request(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE, 0, nfgenmsg{c.family}, nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, c.first), nl.NewRtAttr(nl.CTA_ID, c.id))
	if c.zone != nil {
		r.AddData(nl.NewRtAttr(nl.CTA_ZONE, c.zone))
	}
	return r.Serialize()
}

// forgetConnections deletes the connections of all operations. A kernel that tracks none is not asked for a list, as the list
// takes a module, and a walk through the connections of all namespaces.
//
// Kernels before Linux 6.4 refuse with EBUSY to delete what is in a flow table, and a flow table that is deleted lets go of its
// connections later. So forgetConnections tries again for some seconds.
func (n *Namespace) forgetConnections(ctx context.Context, ops []netstate.Op) error {
	if count, err := os.ReadFile(trackedCount); err == nil && strings.TrimSpace(string(count)) == "0" {
		return nil // and if the count cannot be read, as in user namespaces of older kernels, the list tells
	}
	if n.filter == nil {
		return errNoConntrack
	}
	end := time.Now().Add(busyTime)
	for {
		messages, err := n.listConnections(ops)
		if err == nil {
			err = n.deleteConnections(messages)
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// busyTime is how long a connection may stay in a flow table that is deleted.
const busyTime = 5 * time.Second

// listConnections returns the messages that delete the connections of all operations.
func (n *Namespace) listConnections(ops []netstate.Op) (messages [][]byte, err error) {
	list := request(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, nfgenmsg{unix.AF_UNSPEC})
	err = n.filter.dump(list, func() { messages = nil }, func(m []byte) error {
		c, err := parseConnection(m)
		if err == nil && slices.ContainsFunc(ops, func(o netstate.Op) bool { return c.is(o.(netstate.ConnectionsDel)) }) {
			messages = append(messages, encodeConnectionDel(c))
		}
		return err
	})
	if answers(err, unix.EINVAL) {
		return nil, errNoConntrack
	}
	if err != nil {
		return nil, fmt.Errorf("list tracked connections: %w", err)
	}
	return messages, nil
}

// deleteConnections sends all messages, and returns the first failure.
func (n *Namespace) deleteConnections(messages [][]byte) (failed error) {
	for batch := range slices.Chunk(messages, connectionsAtOnce) {
		failures, err := n.filter.send(batch, len(batch)-1)
		if err != nil {
			return err
		}
		for _, f := range failures {
			if failed == nil && !answers(f.err, unix.ENOENT) { // it has ended by itself
				failed = f.err
			}
		}
	}
	return failed
}

// connectionsAtOnce is how many deletions, of some 100 octets each, go into a batch. Their answers fit the default buffer.
const connectionsAtOnce = 256
