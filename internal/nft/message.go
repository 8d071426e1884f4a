package nft

import (
	"encoding/binary"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
)

// writer writes messages of nftables one after the other into one buffer. A slice for each attribute, and for each
// one around it, took more processor time than the kernel takes to read them.
//
// Numbers are in network order (linux/netfilter/nf_tables.h). Each value is padded to 4 octets.
type writer struct {
	octets []byte
	starts []int  // of the messages in octets
	early  []bool // for each message: it may be carried out in a transaction before the others, see split
	list   [][]byte

	ahead bool // the messages that begin are early

	failed error // the first expression that the library did not encode
}

// reset drops all messages.
func (w *writer) reset() {
	w.octets, w.starts, w.early, w.ahead = w.octets[:0], w.starts[:0], w.early[:0], false
	w.failed = nil
}

// writers are writers whose buffers are used again: the tables of a NIC are some 80 kB.
var writers = sync.Pool{New: func() any { return new(writer) }}

// begin begins a message: struct nlmsghdr, and struct nfgenmsg with family and resource. What is written next are its
// attributes.
func (w *writer) begin(kind, flags uint16, family uint8, resource uint16) {
	w.starts, w.early = append(w.starts, len(w.octets)), append(w.early, w.ahead)
	w.octets = append(w.octets, 0, 0, 0, 0) // the length is known at the end
	w.octets = binary.NativeEndian.AppendUint16(w.octets, kind)
	w.octets = binary.NativeEndian.AppendUint16(w.octets, unix.NLM_F_REQUEST|flags)
	w.octets = append(w.octets, 0, 0, 0, 0, 0, 0, 0, 0) // sequence number, port
	w.octets = append(w.octets, family, unix.NFNETLINK_V0)
	w.octets = binary.BigEndian.AppendUint16(w.octets, resource)
}

// messages returns the messages, which share the buffer, until the next call.
func (w *writer) messages() [][]byte {
	w.list = w.list[:0]
	for i, start := range w.starts {
		end := len(w.octets)
		if i+1 < len(w.starts) {
			end = w.starts[i+1]
		}
		binary.NativeEndian.PutUint32(w.octets[start:], uint32(end-start))
		w.list = append(w.list, w.octets[start:end:end])
	}
	return w.list
}

// split returns the messages as transactions that each have at most room octets, in their order; nil: there are none.
// The transactions before the last one have the messages that are early: new sets and their elements, for which no rule
// asks before the last transaction, so that they change nothing for packets. A transaction of a generation is not
// split: an early one changes nothing the second time, and then does not count.
func (w *writer) split(room int) (transactions [][][]byte) {
	messages := w.messages()
	begin, end := messages[0], messages[len(messages)-1]
	room -= len(begin) + len(end)
	if len(begin) > sizeofBegin {
		return nil
	}
	var early, last [][]byte
	octets, octetsOfLast := 0, 0
	finish := func() {
		transactions = append(transactions, slices.Concat([][]byte{begin}, early, [][]byte{end}))
		early, octets = nil, 0
	}
	for i, m := range messages[1 : len(messages)-1] {
		if !w.early[i+1] {
			last, octetsOfLast = append(last, m), octetsOfLast+len(m)
			continue
		}
		if octets > 0 && octets+len(m) > room {
			finish()
		}
		early, octets = append(early, m), octets+len(m)
		if len(m) > room {
			return nil
		}
	}
	if octets == 0 || octetsOfLast > room {
		return nil
	}
	finish()
	early = last
	finish()
	return transactions
}

// sizeofBegin is the size of a message that begins a transaction of any generation.
const sizeofBegin = unix.SizeofNlMsghdr + netlink.SizeofNetfilter

// bytes writes an attribute with octets.
func (w *writer) bytes(kind uint16, value []byte) {
	w.octets = netlink.AppendAttribute(w.octets, kind, value)
}

// text writes an attribute with a text that a zero ends.
func (w *writer) text(kind uint16, value string) {
	at := len(w.octets)
	w.octets = append(w.octets, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(w.octets[at+2:], kind)
	w.octets = append(append(w.octets, value...), 0)
	binary.NativeEndian.PutUint16(w.octets[at:], uint16(len(w.octets)-at))
	w.pad()
}

func (w *writer) number32(kind uint16, value uint32) {
	w.header(kind, 4)
	w.octets = binary.BigEndian.AppendUint32(w.octets, value)
}

func (w *writer) number64(kind uint16, value uint64) {
	w.header(kind, 8)
	w.octets = binary.BigEndian.AppendUint64(w.octets, value)
}

// header writes struct nlattr of an attribute whose value has size octets.
func (w *writer) header(kind uint16, size int) {
	w.octets = binary.NativeEndian.AppendUint16(w.octets, uint16(unix.SizeofRtAttr+size))
	w.octets = binary.NativeEndian.AppendUint16(w.octets, kind)
}

func (w *writer) pad() {
	for len(w.octets)%unix.RTA_ALIGNTO != 0 {
		w.octets = append(w.octets, 0)
	}
}

// open begins an attribute that holds attributes, and returns what close needs.
func (w *writer) open(kind uint16) (at int) {
	at = len(w.octets)
	w.header(unix.NLA_F_NESTED|kind, 0)
	return at
}

// close ends the attribute that open has begun.
func (w *writer) close(at int) {
	binary.NativeEndian.PutUint16(w.octets[at:], uint16(len(w.octets)-at))
}

// data writes an attribute that holds a value for a register (NFTA_DATA_VALUE).
func (w *writer) data(kind uint16, value []byte) {
	at := w.open(kind)
	w.bytes(unix.NFTA_DATA_VALUE, value)
	w.close(at)
}

// expression writes an expression of a rule, whose attributes the function writes.
func (w *writer) expression(name string, attributes func()) {
	element := w.open(unix.NFTA_LIST_ELEM)
	w.text(unix.NFTA_EXPR_NAME, name)
	data := w.open(unix.NFTA_EXPR_DATA)
	attributes()
	w.close(data)
	w.close(element)
}
