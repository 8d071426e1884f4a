package nft

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
)

// expression is an expression of an nftables rule, with its attributes in the order of their numbers.
type expression struct {
	name       []byte
	attributes []attribute
}

// attribute is an attribute of an expression. number is made of 8 bits for each attribute around it, the
// outermost first, and 8 bits of its own: 0x301 is attribute 1 in attribute 3.
type attribute struct {
	number uint32
	value  []byte
}

// newest is the highest attribute that is compared, of each expression that guestwire uses
// (linux/netfilter/nf_tables.h). Higher attributes are left out: a newer kernel reports some of them of each
// rule, such as NFTA_BITWISE_OP, though guestwire did not send them.
var newest = map[string]uint16{
	"meta": 3, "cmp": 3, "payload": 8, "immediate": 2, "masq": 3, "nat": 7, "bitwise": 5, "byteorder": 5,
	"connlimit": 2, "fwd": 3, "ct": 4, "exthdr": 7, "range": 4, "rt": 2, "limit": 5, "log": 6,
	"lookup": 5, "dynset": 10, "reject": 2, "target": 3, "fib": 3,
	"counter": 0, // its attributes are what it has counted
}

// nested reports whether an attribute of the expression holds attributes. Such are the value that cmp compares
// with and the value that immediate loads (NFTA_DATA_*), and the verdict in the latter (NFTA_VERDICT_*).
func (e expression) nested(number uint32) bool {
	return string(e.name) == "cmp" && number == unix.NFTA_CMP_DATA ||
		string(e.name) == "immediate" && (number == unix.NFTA_IMMEDIATE_DATA || number == unix.NFTA_IMMEDIATE_DATA<<8|unix.NFTA_DATA_VERDICT)
}

// appendExpressions appends the text of a list of expressions (NFTA_RULE_EXPRESSIONS), by which rules are compared,
// such as "[meta 1=00000001 2=00000006][cmp 1=00000001 2=00000000 301=6c6f]". A rule that was sent, and the same rule
// read back, have equal texts.
//
// The list is walked without functions for the attributes: all rules pass here, of each Setup and Check, and the
// functions, the expressions and their names would be most of what a Check allocates.
func appendExpressions(text, list []byte) ([]byte, error) {
	e := scratch.Get().(*expression)
	defer e.release()
	for len(list) >= unix.SizeofRtAttr {
		_, element, rest, err := netlink.CutAttribute(list)
		if err == nil {
			err = e.read(element)
		}
		if err != nil {
			return text, err
		}
		list = rest
		text = e.appendText(text)
	}
	return text, nil
}

// sameExpressions reports whether two lists of expressions have the same text, without writing it.
func sameExpressions(a, b []byte) (bool, error) {
	first, second := scratch.Get().(*expression), scratch.Get().(*expression)
	defer first.release()
	defer second.release()
	for len(a) >= unix.SizeofRtAttr && len(b) >= unix.SizeofRtAttr {
		for _, side := range []struct {
			list *[]byte
			e    *expression
		}{{&a, first}, {&b, second}} {
			_, element, rest, err := netlink.CutAttribute(*side.list)
			if err == nil {
				err = side.e.read(element)
			}
			if err != nil {
				return false, err
			}
			*side.list = rest
		}
		same := slices.EqualFunc(first.attributes, second.attributes, func(a, b attribute) bool {
			return a.number == b.number && bytes.Equal(a.value, b.value)
		})
		if !same || !bytes.Equal(first.name, second.name) {
			return false, nil
		}
	}
	return len(a) < unix.SizeofRtAttr && len(b) < unix.SizeofRtAttr, nil
}

// read parses an element of a list of expressions, without what the kernel adds.
func (e *expression) read(element []byte) error {
	e.name, e.attributes = nil, e.attributes[:0]
	var data []byte
	for len(element) >= unix.SizeofRtAttr {
		kind, v, rest, err := netlink.CutAttribute(element)
		if err != nil {
			return err
		}
		element = rest
		switch kind {
		case unix.NFTA_EXPR_NAME:
			e.name, _, _ = bytes.Cut(v, []byte{0})
		case unix.NFTA_EXPR_DATA:
			data = v
		}
	}
	if err := e.parse(0, data); err != nil {
		return err
	}
	slices.SortFunc(e.attributes, func(a, b attribute) int { return cmp.Compare(a.number, b.number) })
	e.normalise()
	return nil
}

// scratch are expressions whose room for attributes is used again.
var scratch = sync.Pool{New: func() any { return &expression{attributes: make([]attribute, 0, 16)} }}

// release gives the expression to the next caller, without the message in which its values lie.
func (e *expression) release() {
	e.name, e.attributes = nil, e.attributes[:cap(e.attributes)]
	clear(e.attributes)
	scratch.Put(e)
}

// parse adds the attributes in b to the expression. around is the number of the attribute that holds b.
func (e *expression) parse(around uint32, b []byte) error {
	last := uint16(netlink.TypeMask)
	if newest, ok := newest[string(e.name)]; ok && around == 0 {
		last = newest
	}
	for len(b) >= unix.SizeofRtAttr {
		kind, v, rest, err := netlink.CutAttribute(b)
		if err != nil {
			return err
		}
		b = rest
		if kind > last {
			continue
		}
		number := around<<8 | uint32(kind)
		if !e.nested(number) {
			e.attributes = append(e.attributes, attribute{number, v})
		} else if err := e.parse(number, v); err != nil {
			return err
		}
	}
	return nil
}

// normalise removes what the kernel adds to an expression. A nat with one address and one port gets the same registers
// as ends of ranges, and flags that say so. A payload that is written gets a checksum of none. An exthdr, a lookup and
// a dynset get flags that are 0, a dynset a timeout of 0: the set's. A reject by a reset loses its code. The number of
// a set counts only in the transaction that makes the set.
func (e *expression) normalise() {
	switch string(e.name) {
	case "nat":
		const ranges = 1 | 2 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED, linux/netfilter/nf_nat.h
		address, port := e.value(unix.NFTA_NAT_REG_ADDR_MIN), e.value(unix.NFTA_NAT_REG_PROTO_MIN)
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_NAT_REG_ADDR_MAX && bytes.Equal(a.value, address) ||
				a.number == unix.NFTA_NAT_REG_PROTO_MAX && bytes.Equal(a.value, port) ||
				a.number == unix.NFTA_NAT_FLAGS && netlink.BE32(a.value)&^ranges == 0
		})
	case "lookup":
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_LOOKUP_SET_ID || a.number == unix.NFTA_LOOKUP_FLAGS && netlink.BE32(a.value) == 0
		})
	case "dynset":
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_DYNSET_SET_ID || a.number == unix.NFTA_DYNSET_FLAGS && netlink.BE32(a.value) == 0 ||
				a.number == unix.NFTA_DYNSET_TIMEOUT && be64(a.value) == 0
		})
	case "reject": // by a reset
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_REJECT_ICMP_CODE && slices.Equal(a.value, []byte{0})
		})
	case "payload": // a write gets a checksum of type 0: none
		e.without(func(a attribute) bool { return a.number >= unix.NFTA_PAYLOAD_CSUM_TYPE && netlink.BE32(a.value) == 0 })
	case "exthdr":
		e.without(func(a attribute) bool { return a.number == unix.NFTA_EXTHDR_FLAGS && netlink.BE32(a.value) == 0 })
	}
}

// without removes the attributes for which f is true.
func (e *expression) without(f func(attribute) bool) {
	e.attributes = slices.DeleteFunc(e.attributes, f)
}

// value is the value of an attribute; nil if the expression does not have it.
func (e *expression) value(number uint32) []byte {
	for _, a := range e.attributes {
		if a.number == number {
			return a.value
		}
	}
	return nil
}

// appendText appends the expression as text.
func (e *expression) appendText(text []byte) []byte {
	text = append(append(text, '['), e.name...)
	for _, a := range e.attributes {
		text = append(strconv.AppendUint(append(text, ' '), uint64(a.number), 16), '=')
		text = hex.AppendEncode(text, a.value)
	}
	return append(text, ']')
}
