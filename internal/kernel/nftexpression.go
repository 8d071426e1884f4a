package kernel

import (
	"cmp"
	"encoding/hex"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// expression is an expression of an nftables rule, with its attributes in the order of their numbers.
type expression struct {
	name       string
	attributes []attribute
}

// attribute is an attribute of an expression. number is made of 8 bits for each attribute around it, the
// outermost first, and 8 bits of its own: 0x301 is attribute 1 in attribute 3.
type attribute struct {
	number uint32
	value  []byte
}

// newest is the highest attribute that is compared, of each expression that guestwire uses
// (linux/netfilter/nf_tables.h). Higher attributes are left out: a newer kernel tells some of them of each
// rule, such as NFTA_BITWISE_OP, though guestwire did not send them.
var newest = map[string]uint16{
	"meta": 3, "cmp": 3, "payload": 8, "immediate": 2, "masq": 3, "nat": 7, "bitwise": 5, "byteorder": 5,
	"connlimit": 2, "fwd": 3, "ct": 4, "exthdr": 7, "range": 4, "rt": 2, "limit": 5, "log": 6,
	"lookup": 5, "dynset": 10,
	"counter": 0, // its attributes are what it has counted
}

// nested says whether an attribute of the expression holds attributes. Such are the value that cmp compares
// with and the value that immediate loads (NFTA_DATA_*), and the verdict in the latter (NFTA_VERDICT_*).
func (e expression) nested(number uint32) bool {
	return e.name == "cmp" && number == unix.NFTA_CMP_DATA ||
		e.name == "immediate" && (number == unix.NFTA_IMMEDIATE_DATA || number == unix.NFTA_IMMEDIATE_DATA<<8|unix.NFTA_DATA_VERDICT)
}

// parseExpressions parses a list of expressions (NFTA_RULE_EXPRESSIONS) and normalises them: a rule that was
// sent, and the same rule read back, have equal expressions.
func parseExpressions(b []byte) (list []expression, err error) {
	err = eachAttribute(b, 0, func(_ uint16, element []byte) error {
		var e expression
		var data []byte
		err := eachAttribute(element, 0, func(kind uint16, v []byte) error {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				e.name = unix.ByteSliceToString(v)
			case unix.NFTA_EXPR_DATA:
				data = v
			}
			return nil
		})
		if err == nil {
			err = e.parse(0, data)
		}
		slices.SortFunc(e.attributes, func(a, b attribute) int { return cmp.Compare(a.number, b.number) })
		e.normalise()
		list = append(list, e)
		return err
	})
	return list, err
}

// parse adds the attributes in b to the expression. around is the number of the attribute that holds b.
func (e *expression) parse(around uint32, b []byte) error {
	return eachAttribute(b, 0, func(kind uint16, v []byte) error {
		if last, ok := newest[e.name]; ok && around == 0 && kind > last {
			return nil
		}
		number := around<<8 | uint32(kind)
		if e.nested(number) {
			return e.parse(number, v)
		}
		e.attributes = append(e.attributes, attribute{number, v})
		return nil
	})
}

// normalise removes what the kernel adds to an expression. A nat with one address and one port gets the same
// registers as ends of ranges, and flags that say so. An exthdr, a lookup and a dynset get flags that are 0, a dynset a
// timeout of 0: the set's. The number of a set counts only in the transaction that makes the set.
func (e *expression) normalise() {
	switch e.name {
	case "nat":
		const ranges = 1 | 2 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED, linux/netfilter/nf_nat.h
		address, port := string(e.value(unix.NFTA_NAT_REG_ADDR_MIN)), string(e.value(unix.NFTA_NAT_REG_PROTO_MIN))
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_NAT_REG_ADDR_MAX && string(a.value) == address ||
				a.number == unix.NFTA_NAT_REG_PROTO_MAX && string(a.value) == port ||
				a.number == unix.NFTA_NAT_FLAGS && be32(a.value)&^ranges == 0
		})
	case "lookup":
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_LOOKUP_SET_ID || a.number == unix.NFTA_LOOKUP_FLAGS && be32(a.value) == 0
		})
	case "dynset":
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_DYNSET_SET_ID || a.number == unix.NFTA_DYNSET_FLAGS && be32(a.value) == 0 ||
				a.number == unix.NFTA_DYNSET_TIMEOUT && be64(a.value) == 0
		})
	case "exthdr":
		e.without(func(a attribute) bool { return a.number == unix.NFTA_EXTHDR_FLAGS && be32(a.value) == 0 })
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

// expressionsText is a list of expressions as text, by which rules are compared, such as
// "[meta 1=00000001 2=00000006][cmp 1=00000001 2=00000000 301=6c6f]".
func expressionsText(list []expression) string {
	var b []byte
	for _, e := range list {
		b = append(append(b, '['), e.name...)
		for _, a := range e.attributes {
			b = append(strconv.AppendUint(append(b, ' '), uint64(a.number), 16), '=')
			b = hex.AppendEncode(b, a.value)
		}
		b = append(b, ']')
	}
	return string(b)
}
