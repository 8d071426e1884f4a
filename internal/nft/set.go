package nft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
)

// Numbers of nft(8) for the types of a set's elements, which the kernel only keeps (nftables, include/datatype.h).
const (
	typeIPv4Address = 7
	typeIPv6Address = 8
	typePort        = 13
)

// writeSet writes the attributes of a set (NFTA_SET_*), without its elements. Number is the set's in the transaction.
func (w *writer) writeSet(table string, s firewall.Set, number uint32) {
	flags, key := uint32(unix.NFT_SET_EVAL), ip.Pick[uint32](s.Of.Version(), typeIPv4Address, typeIPv6Address)
	if s.Milliseconds != 0 {
		flags |= unix.NFT_SET_TIMEOUT
	}
	if s.Of.IsDestination() {
		key = typeOf(s.Of.Version())
	}
	w.text(unix.NFTA_SET_TABLE, table)
	w.text(unix.NFTA_SET_NAME, s.Name)
	w.number32(unix.NFTA_SET_FLAGS, flags)
	w.number32(unix.NFTA_SET_KEY_TYPE, key)
	w.number32(unix.NFTA_SET_KEY_LEN, uint32(keyLength(s.Of)))
	w.number32(unix.NFTA_SET_ID, number)
	if s.Milliseconds != 0 {
		w.number64(unix.NFTA_SET_TIMEOUT, s.Milliseconds)
	}
	if s.Size > 0 {
		description := w.open(unix.NFTA_SET_DESC)
		w.number32(unix.NFTA_SET_DESC_SIZE, uint32(s.Size))
		w.close(description)
	}
	if s.Of.IsDestination() {
		w.bytes(unix.NFTA_SET_USERDATA, keyByteOrder)
	}
}

// writeSetElements writes the messages of a kind (NFT_MSG_*) with so many elements of a set that has that number in the
// transaction; 0: the set is there. Write writes the element at the index.
func (w *writer) writeSetElements(kind uint16, family firewall.Family, table, set string, number uint32, count int, write func(index int)) {
	flags := uint16(unix.NLM_F_CREATE)
	if kind == unix.NFT_MSG_DELSETELEM {
		flags = 0
	}
	for first := 0; first < count; first += mostElements {
		w.beginTables(kind, flags, family)
		w.text(unix.NFTA_SET_ELEM_LIST_SET, set)
		if number != 0 {
			w.number32(unix.NFTA_SET_ELEM_LIST_SET_ID, number)
		}
		w.text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		list := w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for index := first; index < min(first+mostElements, count); index++ {
			write(index)
		}
		w.close(list)
	}
}

// mostElements are those of one message: an attribute holds up to 65535 octets, and the largest element has sizeofBox.
const mostElements = 900

// mostCommented are those of one message if some have a comment.
const mostCommented = 180

// writeElements writes the messages about elements of a set.
func (w *writer) writeElements(kind uint16, family firewall.Family, table, set string, number uint32, all []firewall.Element) {
	if len(all) > mostCommented && slices.ContainsFunc(all, func(e firewall.Element) bool { return e.Comment != "" }) {
		for part := range slices.Chunk(all, mostCommented) {
			w.writeElements(kind, family, table, set, number, part)
		}
		return
	}
	w.writeSetElements(kind, family, table, set, number, len(all), func(index int) {
		element := w.open(unix.NFTA_LIST_ELEM)
		w.data(unix.NFTA_SET_ELEM_KEY, all[index].Key)
		if life := all[index].Milliseconds; life != 0 {
			w.number64(unix.NFTA_SET_ELEM_TIMEOUT, life)
		}
		if comment := all[index].Comment; comment != "" {
			w.bytes(unix.NFTA_SET_ELEM_USERDATA, append([]byte{commentOfElement, byte(len(comment) + 1)}, comment+"\x00"...))
		}
		w.close(element)
	})
}

// parseSet parses struct nfgenmsg and the attributes of a set or a map (NFTA_SET_*), and returns also the name of the
// set's table. The head names what a set of guestwire does not have.
func parseSet(m []byte) (image firewall.Declaration, table string, err error) {
	var s firewall.Set
	var key, length, flags, data, dataLength uint32
	var fields []uint32 // of a concatenation
	var others []string
	err = netlink.EachAttribute(m, netlink.SizeofNetfilter, func(attribute uint16, v []byte) error {
		switch attribute {
		case unix.NFTA_SET_TABLE:
			table = unix.ByteSliceToString(v)
		case unix.NFTA_SET_NAME:
			image.Name = unix.ByteSliceToString(v)
		case unix.NFTA_SET_FLAGS:
			flags = netlink.BE32(v)
		case unix.NFTA_SET_KEY_TYPE:
			key = netlink.BE32(v)
		case unix.NFTA_SET_KEY_LEN:
			length = netlink.BE32(v)
		case unix.NFTA_SET_DATA_TYPE:
			data = netlink.BE32(v)
		case unix.NFTA_SET_DATA_LEN:
			dataLength = netlink.BE32(v)
		case unix.NFTA_SET_TIMEOUT:
			s.Milliseconds = be64(v)
		case unix.NFTA_SET_DESC:
			return netlink.EachAttribute(v, 0, func(attribute uint16, v []byte) error {
				switch attribute {
				case unix.NFTA_SET_DESC_SIZE:
					s.Size = int(netlink.BE32(v))
				case descConcat:
					return netlink.EachAttribute(v, 0, func(_ uint16, v []byte) error {
						return netlink.EachAttribute(v, 0, func(_ uint16, v []byte) error {
							fields = append(fields, netlink.BE32(v))
							return nil
						})
					})
				default:
					others = append(others, fmt.Sprintf("attribute %d of its description", attribute))
				}
				return nil
			})
		case unix.NFTA_SET_POLICY, unix.NFTA_SET_GC_INTERVAL, unix.NFTA_SET_OBJ_TYPE, setExpression, setExpressions:
			others = append(others, fmt.Sprintf("attribute %d = %x", attribute, v))
		}
		return nil
	})
	if flags == unix.NFT_SET_MAP && s.Milliseconds == 0 && key == typePort && length == 2 && data == typePort && dataLength == 2 {
		image.Head = strings.Join(append([]string{firewall.PortMapHead(s.Size)}, others...), " ")
		return image, table, err
	}
	if head, is := destinationsHead(flags, key, length, fields); is && s.Milliseconds == 0 && s.Size == 0 {
		image.Head = strings.Join(append([]string{head}, others...), " ")
		return image, table, err
	}
	if data != 0 || dataLength != 0 {
		others = append(others, fmt.Sprintf("data of type %d, %d octets", data, dataLength))
	}
	wanted := uint32(unix.NFT_SET_EVAL)
	if s.Milliseconds != 0 {
		wanted |= unix.NFT_SET_TIMEOUT
	}
	if len(fields) > 0 {
		others = append(others, fmt.Sprintf("parts of %v octets", fields))
	}
	if flags != wanted {
		others = append(others, fmt.Sprintf("flags %#x", flags))
	}
	switch s.Of = firewall.SourceAddress6; {
	case key == typeIPv4Address && length == 4:
		s.Of = firewall.SourceAddress4
	case key == typeOf(4) && int(length) == keyLength(firewall.Destination4):
		s.Of = firewall.Destination4
	case key == typeOf(6) && int(length) == keyLength(firewall.Destination6):
		s.Of = firewall.Destination6
	case key != typeIPv6Address || length != 16:
		others = append(others, fmt.Sprintf("type %d of %d octets", key, length))
	}
	image.Head = strings.Join(append([]string{s.Head()}, others...), " ")
	return image, table, err
}

// readElements reads the elements of the set in the kernel, as many as the set may have. A set that the kernel does not
// have has none.
//
// A list of a set that grows lacks elements: the kernel counts those of earlier messages, and moves all to a larger
// table of hashes meanwhile, without another generation (nft_rhash_walk, rht_deferred_worker). So the set is read until
// a list has no new element.
func (n *Tables) readElements(t firewall.Table, s *firewall.Set) error {
	s.Elements = nil
	seen := map[string]bool{}
	for before := -1; len(seen) > before; {
		before = len(seen)
		err := n.dumpElements(t.Family, t.Name, s.Name, func() {}, func(m []byte) error {
			elements, err := parseElements(m)
			for _, e := range elements {
				if key := string(e.Key); len(e.Key) == keyLength(s.Of) && !seen[key] && len(s.Elements) < s.Size {
					seen[key] = true
					s.Elements = append(s.Elements, e)
				}
			}
			return err
		})
		if netlink.Answers(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dumpElements calls f with each message about the elements of a set. Before each try it calls reset.
func (n *Tables) dumpElements(family firewall.Family, table, set string, reset func(), f func(m []byte) error) error {
	list := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, netlink.Netfilter(families[family]),
		nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(table)), nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
	return n.filter.Dump(list, reset, f)
}

func keyLength(p firewall.Part) int {
	length := int(fieldsOf(p.Version())[0])
	if p.IsDestination() {
		length += 4 + 4
	}
	return length
}

// parseElements returns the elements of a list that have a key.
func parseElements(m []byte) (elements []firewall.Element, err error) {
	err = eachElement(m, func(e element) {
		if e.key != nil {
			elements = append(elements, firewall.Element{Key: slices.Clone(e.key), Milliseconds: e.milliseconds, Comment: e.comment})
		}
	})
	return elements, err
}

// othersElements is in the head of a set or a map with elements that guestwire makes none of, such as one for all keys.
const othersElements = " elements of another program;"

// completeHead appends what a set holds to its head. Restart and add read the elements, and held is their text.
func (n *Tables) completeHead(image *firewall.Image, set string, held func() string, restart func(), add func(message []byte, others *bool) error) error {
	at := slices.IndexFunc(image.Sets, func(d firewall.Declaration) bool { return d.Name == set })
	if at < 0 {
		return nil
	}
	others := false
	err := n.dumpElements(image.Family, image.Name, set, func() { others = false; restart() }, func(m []byte) error { return add(m, &others) })
	if err != nil && !netlink.Answers(err, unix.ENOENT) {
		return err
	}
	image.Sets[at].Head += held()
	if others {
		image.Sets[at].Head += othersElements
	}
	return nil
}

// element is one of a set in the kernel: the key, the key at the end of a range, and the data; nil: it has none. An
// element that does not expire has 0 milliseconds, and each other one at least 1. With ends, the key is the first one
// after a range.
type element struct {
	key, end, data []byte
	milliseconds   uint64
	ends           bool
	comment        string
}

// eachElement parses struct nfgenmsg and a list of elements (NFTA_SET_ELEM_LIST_ELEMENTS), and calls f with each.
func eachElement(m []byte, f func(element)) error {
	return netlink.EachAttribute(m, netlink.SizeofNetfilter, func(attribute uint16, v []byte) error {
		if attribute != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return netlink.EachAttribute(v, 0, func(_ uint16, attributes []byte) error {
			var parts [elementKeyEnd + 1][]byte
			milliseconds, ends, comment := uint64(0), false, ""
			err := netlink.EachAttribute(attributes, 0, func(attribute uint16, v []byte) error {
				switch attribute {
				case unix.NFTA_SET_ELEM_FLAGS:
					ends = netlink.BE32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
				case unix.NFTA_SET_ELEM_EXPIRATION:
					milliseconds = max(1, be64(v))
				case unix.NFTA_SET_ELEM_USERDATA:
					comment = parseComment(v)
				case unix.NFTA_SET_ELEM_KEY, elementKeyEnd, unix.NFTA_SET_ELEM_DATA:
					return netlink.EachAttribute(v, 0, func(_ uint16, value []byte) error {
						parts[attribute] = value
						return nil
					})
				}
				return nil
			})
			if err == nil {
				f(element{parts[unix.NFTA_SET_ELEM_KEY], parts[elementKeyEnd], parts[unix.NFTA_SET_ELEM_DATA], milliseconds, ends, comment})
			}
			return err
		})
	})
}

// commentOfElement is NFTNL_UDATA_SET_ELEM_COMMENT (libnftnl, include/libnftnl/udata.h): a text that nft(8) shows.
const commentOfElement = 0

// parseComment returns the comment in the data that nft(8) keeps for an element: the type and the length of each item,
// of an octet each, and the item. Empty: there is none.
func parseComment(b []byte) string {
	for len(b) >= 2 && len(b)-2 >= int(b[1]) {
		if kind, item := b[0], b[2:2+int(b[1])]; kind == commentOfElement {
			return unix.ByteSliceToString(item)
		}
		b = b[2+int(b[1]):]
	}
	return ""
}

// Attributes of a set that unix does not name (linux/netfilter/nf_tables.h).
const (
	setExpression  = 17 // NFTA_SET_EXPR
	setExpressions = 18 // NFTA_SET_EXPRESSIONS
)
