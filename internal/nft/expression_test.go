package nft

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attr is an attribute of an expression as the kernel reports it.
type attr struct {
	number int
	value  string
}

// ruleText is the text by which a rule with one expression is known.
func ruleText(t *testing.T, name string, list ...attr) string {
	t.Helper()
	data := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_EXPR_DATA, nil)
	for _, a := range list {
		data.AddRtAttr(a.number, []byte(a.value))
	}
	element := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, nil)
	element.AddRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name))
	element.AddChild(data)
	text, err := appendExpressions(nil, element.Serialize())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRuleText: a rule is distinguished from ours by the name, the number and the value of each attribute. Only what
// the kernel adds by itself to a rule of ours does not count: another program's rule that passes for ours is a hole in
// the guest's filter that Check does not see.
func TestRuleText(t *testing.T) {
	const one, two, none = "\x00\x00\x00\x01", "\x00\x00\x00\x02", "\x00\x00\x00\x00"
	list := func(a ...attr) []attr { return a }
	for _, c := range []struct {
		what   string
		name   string
		ours   []attr
		other  string
		theirs []attr
		same   bool
	}{
		{"the same", "meta", list(attr{1, one}, attr{2, two}), "meta", list(attr{1, one}, attr{2, two}), true},
		{"in another order", "meta", list(attr{1, one}, attr{2, two}), "meta", list(attr{2, two}, attr{1, one}), true},
		{"another name", "meta", list(attr{1, one}), "ct", list(attr{1, one}), false},
		{"another number", "meta", list(attr{1, one}), "meta", list(attr{2, one}), false},
		{"another value", "meta", list(attr{1, one}), "meta", list(attr{1, two}), false},
		{"an attribute more", "meta", list(attr{1, one}), "meta", list(attr{1, one}, attr{3, one}), false},
		{"an attribute that newer kernels have", "meta", list(attr{1, one}), "meta", list(attr{1, one}, attr{4, one}), true},
		{"the last attribute of an expression", "bitwise", list(attr{1, one}), "bitwise", list(attr{1, one}, attr{5, one}), false},
		{"an expression that we do not have", "quota", list(attr{1, one}), "quota", list(attr{1, one}, attr{9, one}), false},
		{"what a counter counts", "counter", list(attr{1, one}, attr{2, one}), "counter", list(attr{1, two}, attr{2, two}), true},
		{"another limit", "limit", list(attr{1, one}), "limit", list(attr{1, two}), false},
		{"a limit that is turned round", "limit", list(attr{5, none}), "limit", list(attr{5, one}), false},
		{"another group of a log", "log", list(attr{1, one}), "log", list(attr{1, two}), false},
		{"flags of a log", "log", list(attr{1, one}), "log", list(attr{1, one}, attr{6, one}), false},

		// Attributes 3 and 4 of nat are the first and the last address, 5 and 6 the ports, 7 the flags.
		{"a range of one address", "nat", list(attr{3, one}), "nat", list(attr{3, one}, attr{4, one}), true},
		{"a range of addresses", "nat", list(attr{3, one}), "nat", list(attr{3, one}, attr{4, two}), false},
		{"a range of one port", "nat", list(attr{5, one}), "nat", list(attr{5, one}, attr{6, one}), true},
		{"a range of ports", "nat", list(attr{5, one}), "nat", list(attr{5, one}, attr{6, two}), false},
		{"the flags of ranges", "nat", list(attr{3, one}), "nat", list(attr{3, one}, attr{7, "\x00\x00\x00\x03"}), true},
		{"a random port", "nat", list(attr{3, one}), "nat", list(attr{3, one}, attr{7, "\x00\x00\x00\x04"}), false},
		{"a random port in a range", "nat", list(attr{3, one}), "nat", list(attr{3, one}, attr{7, "\x00\x00\x00\x07"}), false},

		// Attribute 2 of dynset, 4 of lookup is the number of a set, 9 and 5 are the flags, 6 of dynset is the timeout.
		{"the number of a set", "lookup", list(attr{1, "a"}, attr{4, one}), "lookup", list(attr{1, "a"}, attr{4, two}), true},
		{"another set", "lookup", list(attr{1, "a"}), "lookup", list(attr{1, "b"}), false},
		{"not in a set", "lookup", list(attr{1, "a"}), "lookup", list(attr{1, "a"}, attr{5, one}), false},
		{"no flags of a lookup", "lookup", list(attr{1, "a"}), "lookup", list(attr{1, "a"}, attr{5, none}), true},
		{"the number of a set to add to", "dynset", list(attr{1, "a"}, attr{2, one}), "dynset", list(attr{1, "a"}, attr{2, two}), true},
		{"delete instead of add", "dynset", list(attr{3, none}), "dynset", list(attr{3, two}), false},
		{"the set's timeout", "dynset", list(attr{1, "a"}), "dynset", list(attr{1, "a"}, attr{6, none + none}), true},
		{"another timeout", "dynset", list(attr{1, "a"}), "dynset", list(attr{1, "a"}, attr{6, none + one}), false},
		{"an added element that is turned round", "dynset", list(attr{1, "a"}), "dynset", list(attr{1, "a"}, attr{9, one}), false},

		// Attribute 5 of exthdr are the flags; 1 asks whether the header is there.
		{"no flags", "exthdr", list(attr{1, one}), "exthdr", list(attr{1, one}, attr{5, none}), true},
		{"whether a header is there", "exthdr", list(attr{1, one}), "exthdr", list(attr{1, one}, attr{5, one}), false},
		{"an attribute 5 of another expression", "payload", list(attr{1, one}), "payload", list(attr{1, one}, attr{5, none}), false},
	} {
		ours, theirs := ruleText(t, c.name, c.ours...), ruleText(t, c.other, c.theirs...)
		if (ours == theirs) != c.same {
			t.Errorf("%s: %s and %s are the same: %t, want %t", c.what, ours, theirs, ours == theirs, c.same)
		}
	}
}

// TestSameExpressions: two rules of guestwire are the same if their texts are.
func TestSameExpressions(t *testing.T) {
	var lists [][]byte
	for _, r := range everyRule() {
		var w writer
		w.writeExpressions(r)
		lists = append(lists, w.octets)
	}
	for _, a := range lists {
		for _, b := range lists {
			same, equal, err := compareLists(a, b)
			if err != nil || same != equal {
				t.Errorf("%x\n%x\nare the same: %v, by their texts: %v; %v", a, b, same, equal, err)
			}
		}
	}
}

// compareLists compares two lists of expressions by sameExpressions and by their texts.
func compareLists(a, b []byte) (same, equal bool, err error) {
	first, err1 := appendExpressions(nil, a)
	second, err2 := appendExpressions(nil, b)
	same, err = sameExpressions(a, b)
	return same, string(first) == string(second), errors.Join(err1, err2, err)
}
