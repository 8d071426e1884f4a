package infra_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// TestNameText: what a text means, and the text that it becomes.
func TestNameText(t *testing.T) {
	https := infra.Ports{First: 443}
	for _, c := range []struct {
		text string
		want infra.Name
		back string
	}{
		{"registry.example 443", infra.Name{Name: "registry.example", Ports: []infra.Ports{https}}, "registry.example 443/tcp"},
		{"*.GitHub.com.  443 80", infra.Name{Name: "*.github.com", Ports: []infra.Ports{https, {First: 80}}}, "*.github.com 443/tcp 80/tcp"},
		{"db.internal 5432 private", infra.Name{Name: "db.internal", Ports: []infra.Ports{{First: 5432}}, Private: true}, "db.internal 5432/tcp private"},
		{"_x._udp.example 5000-5010/udp", infra.Name{Name: "_x._udp.example", Ports: []infra.Ports{{Protocol: "udp", First: 5000, Last: 5010}}}, "_x._udp.example 5000-5010/udp"},
		{"host.internal = 10.0.2.1 fd10::1", infra.Name{Name: "host.internal", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.1"), netip.MustParseAddr("fd10::1")}}, "host.internal = 10.0.2.1 fd10::1"},
	} {
		var have infra.Name
		if err := have.UnmarshalText([]byte(c.text)); err != nil || !reflect.DeepEqual(have, c.want) {
			t.Errorf("%q: %+v, %v", c.text, have, err)
		}
		back, err := json.Marshal(have)
		if err != nil || string(back) != fmt.Sprintf("%q", c.back) {
			t.Errorf("%q becomes %s, %v", c.text, back, err)
		}
		var again infra.Name
		if err := json.Unmarshal(back, &again); err != nil || again.String() != c.back {
			t.Errorf("%s becomes %v, %v", back, again, err)
		}
		if err := infra.ValidateNames([]infra.Name{have}); err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	for _, text := range []string{"", "registry.example", "registry.example private", "host.internal =", "host.internal = host", "host.internal = 10.0.2.1 443", "a.example 443,80", "a.example 0", "a.example private 443", "a.example 443 ="} {
		have := infra.Name{Name: "before"}
		if err := have.UnmarshalText([]byte(text)); err == nil || have.Name != "before" {
			t.Errorf("%q: %+v, %v", text, have, err)
		}
	}
	if err := new(infra.Name).UnmarshalText([]byte("a.example 443 privat")); err == nil || !strings.Contains(err.Error(), "the word private at the end") {
		t.Errorf("a word that is no port: %v", err)
	}
}

// TestValidateNames: what is no list of names, and the reason.
func TestValidateNames(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := strings.Join([]string{label, label, label, strings.Repeat("a", 61)}, ".") // 253
	for _, c := range []struct{ texts, want string }{
		{longest + " 1", ""},
		{"*." + longest[2:] + " 1", ""},
		{"*." + longest[1:] + " 1", "252 octets, want at most 251"},
		{longest + "a 1", "want at most 253"},
		{label + "a.example 1", "a label of 64 octets"},
		{"a..example 1", "an empty label"},
		{".example 1", "an empty label"},
		{". 1", "an empty label"},
		{"a.example.. 1", "no dot at the end: a.example"},
		{"-a.example 1", "want no - first or last"},
		{"a/b.example 1", "want letters, digits"},
		{"https://a.example 1", "want letters, digits"},
		{"a.example:443 1", "want letters, digits"},
		{`a\.example 1`, "want letters, digits"},
		{"* 1", "as in *.github.com"},
		{"*. 1", "as in *.github.com"},
		{"a.*.example 1", "as in *.github.com"},
		{"*a.example 1", "as in *.github.com"},
		{"*.*.example 1", "as in *.github.com"},
		{"bücher.example 1", "xn--"},
		{"xn--bcher-kva.example 1", ""},
		{"198.51.100.9 1", "allow it in egress"},
		{"2001:db8::9 1", "allow it in egress"},
		{"a.example 1-128", ""},
		{"a.example 1-129", "129 ports, want at most 128"},
		{"a.example 1-65535 1-65535/udp", "131070 ports, want at most 128"},
		{"a.example 80:8080", "leave :8080 out"},
		{"a.example 80 70-90", "overlaps"},
		{"a.example 80/icmp", `unknown protocol "icmp"`},
		{"a.example 9-8", "ends before it begins"},
		{"a.example = 224.0.0.1", "want the address of a station"},
		{"a.example = fe80::1%eth0", "want the address of a station"},
		{"a.example = ::ffff:10.0.0.1", "want the address of a station"},
		{"a.example = 0.0.0.0", "want the address of a station"},
		{"a.example = 10.0.0.1 10.0.0.1", "twice"},
		{"a.example = 1.0.0.1 1.0.0.2 1.0.0.3 1.0.0.4 1.0.0.5 1.0.0.6 1.0.0.7 1.0.0.8 1.0.0.9", "9 addresses, want at most 8"},
		{"b.example 1; *.a.example 1; a.example 1; A.example. 2", "names[3]: names[2] has the name a.example already"},
		{"*.internal = 10.0.2.1", ""},
	} {
		var list []infra.Name
		for text := range strings.SplitSeq(c.texts, ";") {
			var n infra.Name
			if err := n.UnmarshalText([]byte(text)); err != nil {
				t.Fatal(err)
			}
			list = append(list, n)
		}
		err := infra.ValidateNames(list)
		var field *cache.FieldError
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &field) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q", c.texts, err, c.want)
		}
	}
	for _, n := range []infra.Name{
		{Name: "A.example", Ports: []infra.Ports{{First: 1}}}, {Name: "a.example.", Ports: []infra.Ports{{First: 1}}}, {Name: "a.example"}, {},
		{Name: "a.example", Ports: []infra.Ports{{First: 1}}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		{Name: "a.example", Private: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		{Name: "a.example", Addresses: []netip.Addr{{}}},
	} {
		if err := infra.ValidateNames([]infra.Name{n}); err == nil {
			t.Errorf("%+v is valid", n)
		}
	}
	if err := infra.ValidateNames(make([]infra.Name, 16385)); err == nil || !strings.Contains(err.Error(), "16385 entries") {
		t.Error(err)
	}
}

// FuzzNameText: a text becomes an entry whose text becomes the same entry.
func FuzzNameText(f *testing.F) {
	for _, text := range []string{"registry.example 443", "*.github.com. 443 80/udp 1-2/sctp private", "host.internal = 10.0.2.1 fd10::1", "a = 1", "A private"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var n, again infra.Name
		if n.UnmarshalText([]byte(text)) != nil || infra.ValidateNames([]infra.Name{n}) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(n.String())); err != nil || again.String() != n.String() {
			t.Errorf("%q becomes %q, then %q, %v", text, n, again, err)
		}
	})
}

// TestSpecNames: a Spec with names diverts all questions, and has a list that refuses the rest.
func TestSpecNames(t *testing.T) {
	parse := func(text string) (s infra.Spec, err error) {
		err = json.Unmarshal([]byte(`{"binding": {"masquerade": {}}, "owner": {"uid": 7}, `+text+`}`), &s)
		return s, err
	}
	spec, err := parse(`"egress": ["allow 192.0.2.0/24 443", "refuse all"], "names": ["*.github.com 443"]`)
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
	want := "[divert all 53/udp :15353 divert all 53/tcp :15353 allow 192.0.2.0/24 443/tcp refuse all]"
	if have := fmt.Sprint(spec.AllEgress()); have != want {
		t.Errorf("%s, want %s", have, want)
	}
	if spec.Names = nil; fmt.Sprint(spec.AllEgress()) != fmt.Sprint(spec.Egress) {
		t.Errorf("without names: %v", spec.AllEgress())
	}
	for text, want := range map[string]string{
		`"names": ["a.example 443"]`:                                                                                   `names: the guest can go everywhere without them: want egress to end with "refuse all", or leave this field out`,
		`"egress": ["allow all"], "names": ["a.example 443"]`:                                                          `names: the guest can go everywhere without them: want egress to end with "refuse all", or leave this field out`,
		`"egress": ["refuse all"], "names": []`:                                                                        `names: an empty list says nothing: want ["registry.example 443"], or leave this field out`,
		`"egress": ["refuse all"], "names": ["a.example 443", "a.example 80"]`:                                         `names[1]: names[0] has the name a.example already: give one entry all the ports`,
		`"egress": ["allow 192.0.2.1 53/udp", "refuse all"], "names": ["a.example 443"]`:                               `egress[0]: "allow 192.0.2.1 53/udp" never decides: what the guest asks at port 53 goes to the DNS proxy of names: leave this entry out, or leave names out`,
		`"egress": ["divert gateway 53 :5353", "refuse all"], "names": ["a.example 443"]`:                              `egress[0]: "divert gateway 53/tcp :5353" never decides: what the guest asks at port 53 goes to the DNS proxy of names: leave this entry out, or leave names out`,
		`"egress": ["refuse all udp", "refuse all 440-450", "refuse all"], "names": ["a.example 80", "b.example 443"]`: `names[1]: "b.example 443/tcp" never opens, as egress[1], "refuse all 440-450/tcp", refuses it wherever it leads: leave one of them out`,
		`"egress": ["refuse all"], "egressWithin": ["allow all"], "names": ["a.example 443"]`:                          `names: "divert all 53/udp :15353": egressWithin does not allow the target: add "allow gateway 15353/udp" there, or leave names out`,
	} {
		spec, err := parse(text)
		if err == nil {
			err = spec.Validate()
		}
		var field *cache.FieldError
		if !errors.As(err, &field) || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	// The operator's way out is true.
	within, err := parse(`"egress": ["refuse all"], "egressWithin": ["allow gateway 15353/udp", "allow gateway 15353", "allow all"], "names": ["a.example 443"]`)
	if err == nil {
		err = within.Validate()
	}
	if err != nil {
		t.Error(err)
	}
}
