package names

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/pinmessage"
)

const (
	a     = dnsmessage.TypeA
	aaaa  = dnsmessage.TypeAAAA
	https = dnsmessage.TypeHTTPS
	txt   = dnsmessage.TypeTXT
)

// TestAnswers: what the guest gets for each kind of question. The names that a name stands for need no entry, and are
// not in the answer.
func TestAnswers(t *testing.T) {
	s := (&scene{
		nat64: netip.MustParsePrefix("fd64::/96"),
		list: []string{"good.example", "alias.example", "many.example", "db.example private", "plain.example", "*.wild.example", "deep.wild.example", "host.internal = 10.0.2.1 fd10::1", "*.own.internal = 10.0.2.9",
			"_db._tcp.example", "_x.example", "chain.example", "loop.example", "mapped.example", "web.example", "moved.example", "both.example"},
		answer: zone(
			"good.example A: good.example 60 A 198.51.100.9", "good.example AAAA: good.example 60 AAAA 2001:db8:9::9", "good.example TXT: good.example 60 TXT hello",
			"alias.example A: ALIAS.example 60 CNAME Cdn.net", "alias.example A: cdn.NET 60 CNAME edge.cdn.net", "alias.example A: edge.cdn.net 60 A 198.51.100.10", "alias.example A: other.net 60 A 198.51.100.66",
			"chain.example A: edge.cdn.net 60 A 198.51.100.10", "chain.example A: b.net 60 CNAME edge.cdn.net", "chain.example A: chain.example 60 CNAME b.net",
			"loop.example A: loop.example 60 CNAME a.example", "loop.example A: a.example 60 CNAME loop.example", "loop.example A: a.example 60 A 198.51.100.66",
			"both.example A: both.example 60 CNAME nowhere.example", "both.example A: both.example 60 A 198.51.100.66",
			"db.example A: db.example 60 A 10.1.2.3", "db.example A: db.example 60 A 127.0.0.1", "db.example A: db.example 60 A 169.254.169.254", "db.example A: db.example 60 A 198.51.100.9",
			"plain.example A: plain.example 60 A 10.1.2.3", "plain.example A: plain.example 60 A 169.254.1.1", "plain.example A: plain.example 60 A 0.0.0.0", "plain.example A: plain.example 60 A 198.51.100.9",
			"plain.example AAAA: plain.example 60 AAAA fd00::1", "plain.example AAAA: plain.example 60 AAAA fd64::10.1.2.3", "plain.example AAAA: plain.example 60 AAAA fd64::198.51.100.9",
			"mapped.example AAAA: mapped.example 60 AAAA ::ffff:198.51.100.9",
			"a.b.wild.example A: a.b.wild.example 60 A 198.51.100.11", "deep.wild.example A: deep.wild.example 60 A 198.51.100.12",
			"many.example A: many.example 60 A 198.51.100.1", "many.example A: many.example 60 A 198.51.100.1", "many.example A: many.example 60 A 198.51.100.2", "many.example A: many.example 60 A 198.51.100.3",
			"many.example A: many.example 60 A 198.51.100.4", "many.example A: many.example 60 A 198.51.100.5", "many.example A: many.example 60 A 198.51.100.6", "many.example A: many.example 60 A 198.51.100.7",
			"many.example A: many.example 60 A 198.51.100.8", "many.example A: many.example 60 A 198.51.100.9",
			"_db._tcp.example SRV: _db._tcp.example 60 SRV good.example",
			"web.example HTTPS: web.example 60 HTTPS 1 . 1=h2 4=aaaa 5=ech", "web.example HTTPS: web.example 60 HTTPS 2 web.example. 0=\x00\x01 1=h3 3=\x21\xfb",
			"web.example HTTPS: web.example 60 HTTPS 3 other.example. 1=h3", "web.example HTTPS: web.example 60 HTTPS 0 other.example.", "web.example HTTPS: web.example 60 HTTPS 4 . 0=\x00\x05 5=ech",
			"moved.example HTTPS: moved.example 60 CNAME w.cdn.net", "moved.example HTTPS: w.cdn.net 60 HTTPS 1 . 1=h2",
		),
	}).start(t)
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"good.example.", a, "Success 198.51.100.9"},
		{"gOOd.eXample.", a, "Success 198.51.100.9"},
		{"good.example.", aaaa, "Success 2001:db8:9::9"},
		{"good.example.", txt, "Success TXT hello"},
		{"alias.example.", a, "Success 198.51.100.10"},
		{"chain.example.", a, "Success 198.51.100.10"}, // in another order
		{"loop.example.", a, "ServerFailure"},
		{"both.example.", a, "Success"},
		{"cdn.net.", a, "Refused"},
		{"edge.cdn.net.", a, "Refused"},
		{"sub.good.example.", a, "Refused"},
		{"example.", a, "Refused"},
		{".", a, "Refused"},
		{"example.good.", a, "Refused"},
		{"xgood.example.", a, "Refused"},
		{"db.example.", a, "Success 10.1.2.3 198.51.100.9"},
		{"plain.example.", a, "Success 198.51.100.9"},
		{"plain.example.", aaaa, "Success fd64::c633:6409"},
		{"mapped.example.", aaaa, "Success"},
		{"a.b.wild.example.", a, "Success 198.51.100.11"},
		{"none.wild.example.", a, "NameError"},
		{"wild.example.", a, "Refused"},
		{"xwild.example.", a, "Refused"},
		{"a b.wild.example.", a, "Refused"},
		{"\x1b[31m.wild.example.", a, "Refused"},
		{"deep.wild.example.", a, "Success 198.51.100.12"},
		{"many.example.", a, "Success 198.51.100.1 198.51.100.2 198.51.100.3 198.51.100.4 198.51.100.5 198.51.100.6 198.51.100.7 198.51.100.8"},
		{"host.internal.", a, "Success 10.0.2.1"},
		{"HOST.internal.", aaaa, "Success fd10::1"},
		{"host.internal.", txt, "Success"},
		{"a.own.internal.", a, "Success 10.0.2.9"},
		{"own.internal.", a, "Refused"},
		{"_db._tcp.example.", dnsmessage.TypeSRV, "Success SRV 27017 good.example."},
		{"web.example.", https, "Success HTTPS 1 . 1=h2 HTTPS 2 . 0=\x00\x01 1=h3 3=\x21\xfb"},
		{"moved.example.", https, "Success HTTPS 1 . 1=h2"},
		{"good.example.", dnsmessage.TypeNS, "Success"},
		{"good.example.", dnsmessage.TypeALL, "Success"},
		{"good.example.", dnsmessage.TypeAXFR, "Success"},
		{"good.example.", dnsmessage.TypeCNAME, "Success"},
		{"good.example.", 10, "Success"}, // NULL
	} {
		if have := s.ask(c.name, c.kind); have != c.want {
			t.Errorf("%s %v: %q, want %q", c.name, c.kind, have, c.want)
		}
	}
	for _, asked := range s.askedFor() {
		name := strings.ToLower(asked)
		if strings.Contains(name, "internal") || strings.Contains(name, "cdn") || strings.HasPrefix(name, "sub.") || strings.Contains(name, "31m") {
			t.Errorf("the resolver was asked for %s", asked)
		}
	}
	for _, r := range s.pinRequests() {
		for _, to := range r.Addresses {
			if r.Life != time.Minute || !pinmessage.Allowed(to, s.list[r.Name] == "db.example private", s.nat64) {
				t.Errorf("%s: %v for %v", s.list[r.Name], to, r.Life)
			}
		}
	}
	if strings.Contains(s.logged(), "\x1b") {
		t.Error("the guest writes into the log")
	}
}

// TestSearch: a name that the guest's resolver makes with a search domain does not exist, if no entry has it: REFUSED
// would end the search. No resolver is asked, and the guest keeps nothing. Others are refused as ever.
func TestSearch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	follow := "nameserver 127.0.0.77\nsearch ns.svc.cluster.local svc.cluster.local. Cluster.Local . bad*name\noptions ndots:5\n"
	if err := os.WriteFile(path, []byte(follow), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		proxy *Proxy
		names map[string]string
	}{
		"the field": {&Proxy{Search: []string{"ns.svc.cluster.local", "svc.cluster.local.", "Cluster.Local", ".", ""}}, map[string]string{
			"db.ns.svc.cluster.local.": "Success 198.51.100.9", "good.example.": "Success 198.51.100.9",
			"good.example.ns.svc.cluster.local.": "NameError", "good.example.svc.cluster.local.": "NameError", "GOOD.example.cluster.LOCAL.": "NameError",
			"db.cluster.local.": "NameError", "a b.cluster.local.": "NameError",
			"cluster.local.": "Refused", "local.": "Refused", "xcluster.local.": "Refused", "cluster.local.example.": "Refused", "other.example.": "Refused", ".": "Refused",
		}},
		"the file":            {&Proxy{ResolvConf: path}, map[string]string{"good.example.svc.cluster.local.": "NameError", "a.cluster.local.": "NameError", "cluster.local.": "Refused", "other.example.": "Refused"}},
		"the field over it":   {&Proxy{ResolvConf: path, Search: []string{"pod.example"}}, map[string]string{"good.example.pod.example.": "NameError", "a.cluster.local.": "Refused"}},
		"an empty one":        {&Proxy{ResolvConf: path, Search: []string{}}, map[string]string{"a.cluster.local.": "Refused"}},
		"resolvers, no field": {&Proxy{}, map[string]string{"a.cluster.local.": "Refused"}},
	} {
		s := &scene{list: []string{"good.example", "db.ns.svc.cluster.local"}, answer: zone("good.example A: good.example 60 A 198.51.100.9", "db.ns.svc.cluster.local A: db.ns.svc.cluster.local 60 A 198.51.100.9")}
		s.proxy.ResolvConf, s.proxy.Search = c.proxy.ResolvConf, c.proxy.Search
		s.start(t)
		for of, want := range c.names {
			if have := s.ask(of, a); have != want {
				t.Errorf("%s: %s: %q, want %q", name, of, have, want)
			}
			if want != "NameError" {
				continue
			}
			m, _, _ := s.exchange("tcp", packed(withEDNS(questionOf(of, aaaa), 1232, 0)), 20*time.Second)
			if answerText(m) != want || len(m.Authorities) > 0 || !strings.Contains(string(m.Additionals[0].Body.(*dnsmessage.OPTResource).Options[0].Data), "no entry") {
				t.Errorf("%s: %s gets %v", name, of, m)
			}
		}
		for _, asked := range s.askedFor() {
			if asked = strings.ToLower(asked); asked != "good.example. udp" && asked != "db.ns.svc.cluster.local. udp" {
				t.Errorf("%s: the resolver was asked for %s", name, asked)
			}
		}
		chaos := questionOf("a.cluster.local.", a)
		chaos.Questions[0].Class = dnsmessage.ClassCHAOS
		if m, _, _ := s.exchange("udp", packed(chaos), 20*time.Second); answerText(m) != "Refused" {
			t.Errorf("%s: another class: %s", name, answerText(m))
		}
		if strings.Contains(s.logged(), "good.example.") {
			t.Errorf("%s: the log has names of the search", name)
		}
	}
}

// TestPinnedFirst: the guest gets addresses when they are pinned, and only those. What cannot be pinned fails, for a
// while.
func TestPinnedFirst(t *testing.T) {
	pinning, pinned := make(chan struct{}), make(chan struct{})
	s := (&scene{
		list:   []string{"good.example", "part.example", "full.example"},
		answer: zone("good.example A: good.example 60 A 198.51.100.9", "part.example A: part.example 60 A 198.51.100.1", "part.example A: part.example 60 A 198.51.100.2", "full.example A: full.example 60 A 198.51.100.3"),
		pin: func(r pinmessage.Request) pinmessage.Reply {
			switch r.Name {
			case 0:
				pinning <- struct{}{}
				<-pinned
			case 1:
				return pinmessage.Reply{Pinned: r.Addresses[1:]}
			case 2:
				return pinmessage.Reply{Failed: true}
			}
			return pinmessage.Reply{Pinned: r.Addresses}
		},
	}).start(t)
	got := make(chan string)
	go func() { got <- s.ask("good.example.", a) }()
	<-pinning
	select {
	case text := <-got:
		t.Errorf("the guest got %s before the pin", text)
	case <-time.After(50 * time.Millisecond):
	}
	if text := s.ask("other.example.", a); text != "Refused" {
		t.Error(text)
	}
	pinned <- struct{}{}
	if text := <-got; text != "Success 198.51.100.9" {
		t.Error(text)
	}
	if text := s.ask("part.example.", a); text != "Success 198.51.100.2" {
		t.Error(text)
	}
	if text := s.ask("full.example.", a); text != "ServerFailure" {
		t.Error(text)
	}
	if n := len(s.pinRequests()); n != 3 {
		t.Errorf("%d requests, want 3", n)
	}
	m, _, _ := s.exchange("udp", packed(withEDNS(questionOf("full.example.", a), 1232, 0)), 20*time.Second)
	if len(m.Additionals) != 1 || !strings.Contains(string(m.Additionals[0].Body.(*dnsmessage.OPTResource).Options[0].Data), "cannot be pinned") {
		t.Errorf("the guest does not learn why: %v", m.Additionals)
	}
}

// TestLives: an answer is kept for its life, which is neither short nor long, and the guest gets what is left of it.
// Two who ask at the same time make one question.
func TestLives(t *testing.T) {
	s := (&scene{
		list: []string{"zero.example", "long.example", "short.example", "signed.example", "none.example", "aliased.example"},
		answer: zone("zero.example A: zero.example 0 A 198.51.100.9", "long.example A: long.example 4000000 A 198.51.100.9", "short.example A: short.example 90 A 198.51.100.9", "signed.example A: signed.example 4294967295 A 198.51.100.9",
			"aliased.example A: aliased.example 30 CNAME a.net", "aliased.example A: a.net 300 A 198.51.100.9", "none.example TXT: none.example 60 TXT x"),
	}).start(t)
	began := time.Now()
	var all sync.WaitGroup
	for name, want := range map[string]uint32{"zero.example.": 5, "long.example.": 300, "short.example.": 90, "signed.example.": 5, "aliased.example.": 30} {
		for range 20 {
			all.Go(func() {
				m, _, ok := s.exchange("udp", packed(questionOf(name, a)), 20*time.Second)
				if !ok || len(m.Answers) != 1 || m.Answers[0].Header.TTL > want || m.Answers[0].Header.TTL < want-min(want, 30) {
					t.Errorf("%s: %v, want a life of %d", name, m.Answers, want)
				}
			})
		}
	}
	all.Wait()
	s.ask("none.example.", a)
	s.ask("none.example.", a)
	most := 1 + int(time.Since(began)/pinmessage.Shortest)
	asked := map[string]int{}
	for _, name := range s.askedFor() {
		if name = strings.ToLower(name); asked[name] == most {
			t.Errorf("%s was asked for more than %d times", name, most)
		}
		asked[name]++
	}
	for _, r := range s.pinRequests() {
		if want := []time.Duration{5 * time.Second, 5 * time.Minute, 90 * time.Second, 5 * time.Second, 0, 30 * time.Second}[r.Name]; r.Life != want {
			t.Errorf("%s is pinned for %v, want %v", s.list[r.Name], r.Life, want)
		}
	}
}

// TestMessagesOfGuest: what is a query, and the reply to what is none.
func TestMessagesOfGuest(t *testing.T) {
	s := (&scene{list: []string{"good.example", "large.example"}, answer: zone("good.example A: good.example 60 A 198.51.100.9",
		"large.example TXT: large.example 60 TXT "+strings.Repeat("x", 250)+" "+strings.Repeat("y", 250)+" "+strings.Repeat("z", 250))}).start(t)
	good := questionOf("good.example.", a)
	twice := questionOf("good.example.", a)
	twice.Questions = append(twice.Questions, twice.Questions[0])
	chaos := questionOf("good.example.", a)
	chaos.Questions[0].Class = dnsmessage.ClassCHAOS
	none := good
	none.Questions = nil
	notify := questionOf("good.example.", a)
	notify.OpCode = 4
	reply := replyTo(good)
	for _, c := range []struct {
		name    string
		message []byte
		want    string
	}{
		{"good", packed(good), "Success 198.51.100.9"},
		{"with EDNS", packed(withEDNS(good, 4096, 0)), "Success 198.51.100.9"},
		{"with a network and a cookie", packed(withEDNS(good, 4096, 0, dnsmessage.Option{Code: 8, Data: []byte{0, 1, 24, 0, 198, 51, 100}}, dnsmessage.Option{Code: 10, Data: make([]byte, 8)})), "Success 198.51.100.9"},
		{"two questions", packed(twice), "FormatError"},
		{"no question", packed(none), "FormatError"},
		{"two OPT", packed(withEDNS(withEDNS(good, 512, 0), 512, 0)), "FormatError"},
		{"cut", packed(good)[:20], "FormatError"},
		{"another class", packed(chaos), "Refused"},
		{"notify", packed(notify), "NotImplemented"},
		{"a reply", packed(reply), ""},
		{"short", packed(good)[:11], ""},
		{"empty", nil, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			wait := 20 * time.Second
			if c.want == "" {
				wait = 200 * time.Millisecond
			}
			m, _, ok := s.exchange(network, c.message, wait)
			have := ""
			if ok {
				have = answerText(m)
				if m.ID != 4711 || !m.Response || m.Authoritative {
					t.Errorf("%s by %s: the header %+v", c.name, network, m.Header)
				}
			}
			if have != c.want {
				t.Errorf("%s by %s: %q, want %q", c.name, network, have, c.want)
			}
		}
	}
	m, _, _ := s.exchange("udp", packed(withEDNS(good, 512, 1)), 20*time.Second)
	if len(m.Additionals) != 1 || m.Additionals[0].Header.ExtendedRCode(m.RCode) != badVersion {
		t.Errorf("version 1 of EDNS: %v", m)
	}
	s.mu.Lock()
	messages := slices.Clone(s.messages)
	s.mu.Unlock()
	for _, m := range messages {
		if len(m.Additionals) != 1 || len(m.Additionals[0].Body.(*dnsmessage.OPTResource).Options) != 0 || m.Additionals[0].Header.Class != 1232 || !m.RecursionDesired {
			t.Errorf("the resolver gets %v", m)
		}
	}

	// The answer of 800 octets by the sizes that a guest takes.
	for _, c := range []struct {
		network string
		size    int // of EDNS
		whole   bool
	}{{"udp", 0, false}, {"udp", 100, false}, {"udp", 700, false}, {"udp", 1000, true}, {"udp", 65535, true}, {"tcp", 0, true}, {"tcp", 512, true}} {
		q := questionOf("large.example.", txt)
		if c.size > 0 {
			q = withEDNS(q, c.size, 0)
		}
		m, size, _ := s.exchange(c.network, packed(q), 20*time.Second)
		if m.Truncated == c.whole || len(m.Answers) == 1 != c.whole || c.network == "udp" && size > max(512, min(c.size, 1232)) {
			t.Errorf("%s, %d: %d octets, %s", c.network, c.size, size, answerText(m))
		}
	}
}

// TestUpstream: resolvers that are silent, fail, cut their answer or lie. Nothing that is no reply of the resolver to
// the question gives an answer.
func TestUpstream(t *testing.T) {
	other := func(change func(*dnsmessage.Message)) func(q dnsmessage.Message, tcp bool) [][]byte {
		return func(q dnsmessage.Message, tcp bool) [][]byte {
			bad := replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.66")
			bad.Questions = slices.Clone(bad.Questions)
			change(&bad)
			return [][]byte{packed(bad), packed(replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.9"))}
		}
	}
	raw := func(f func(good []byte) []byte) func(q dnsmessage.Message, tcp bool) [][]byte {
		return func(q dnsmessage.Message, tcp bool) [][]byte {
			good := packed(replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.66"))
			return [][]byte{f(good), packed(replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.9"))}
		}
	}
	cases := map[string]struct {
		answer func(q dnsmessage.Message, tcp bool) [][]byte
		want   string
	}{
		"id":       {other(func(m *dnsmessage.Message) { m.ID++ }), "Success 198.51.100.9"},
		"query":    {other(func(m *dnsmessage.Message) { m.Response = false }), "Success 198.51.100.9"},
		"opcode":   {other(func(m *dnsmessage.Message) { m.OpCode = 5 }), "Success 198.51.100.9"},
		"question": {other(func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("evil.example.") }), "Success 198.51.100.9"},
		"kind":     {other(func(m *dnsmessage.Message) { m.Questions[0].Type = aaaa }), "Success 198.51.100.9"},
		"class":    {other(func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), "Success 198.51.100.9"},
		"none":     {other(func(m *dnsmessage.Message) { m.Questions = nil }), "Success 198.51.100.9"},
		"two":      {other(func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }), "Success 198.51.100.9"},
		"header":   {raw(func(b []byte) []byte { return b[:12] }), "Success 198.51.100.9"},
		"short":    {raw(func(b []byte) []byte { return b[:len(b)-2] }), "Success 198.51.100.9"},
		"counts":   {raw(func(b []byte) []byte { b[6], b[7] = 0xff, 0xff; return b }), "Success 198.51.100.9"},
		"pointer":  {raw(func(b []byte) []byte { copy(b[12:], "\xc0\x0c"); return b }), "Success 198.51.100.9"},
		"pointers": {raw(func(b []byte) []byte { copy(b[len(b)-16:], "\xc0\x0c"); return b[:len(b)-16+14] }), "Success 198.51.100.9"},
		"empty":    {raw(func([]byte) []byte { return nil }), "Success 198.51.100.9"},
		"garbage":  {raw(func(b []byte) []byte { return append(b[:2], strings.Repeat("\xff", 900)...) }), "Success 198.51.100.9"},

		"owner":     {answerAlways("other.example 60 A 198.51.100.66"), "Success"},
		"parent":    {answerAlways("example 60 A 198.51.100.66"), "Success"},
		"type":      {answerAlways("type.example 60 AAAA 2001:db8::66"), "Success"},
		"refused":   {withCode(dnsmessage.RCodeRefused), "ServerFailure"},
		"servfail":  {withCode(dnsmessage.RCodeServerFailure), "ServerFailure"},
		"nxdomain":  {withCode(dnsmessage.RCodeNameError), "NameError"},
		"silent":    {func(dnsmessage.Message, bool) [][]byte { return nil }, "ServerFailure"},
		"authority": {sectionAlone(func(m *dnsmessage.Message) { m.Authorities, m.Answers = m.Answers, nil }), "Success"},
		"additions": {sectionAlone(func(m *dnsmessage.Message) { m.Additionals, m.Answers = m.Answers, nil }), "Success"},
		"extended":  {sectionAlone(func(m *dnsmessage.Message) { *m = extended(*m) }), "ServerFailure"},

		// A reply in another case, and too many messages that are none, lead to TCP.
		"folded": {func(q dnsmessage.Message, tcp bool) [][]byte {
			m := replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.66")
			if tcp {
				m = replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.9")
			}
			m.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("folded.example."), Type: a, Class: dnsmessage.ClassINET}}
			if q.Questions[0].Name.String() == "folded.example." { // one in 8192
				m = replyTo(q, "folded.example 60 A 198.51.100.9")
			}
			return [][]byte{packed(m)}
		}, "Success 198.51.100.9"},
		"flood": {func(q dnsmessage.Message, tcp bool) [][]byte {
			if tcp {
				return [][]byte{packed(replyTo(q, "flood.example 60 A 198.51.100.9"))}
			}
			bad := replyTo(q, "flood.example 60 A 198.51.100.66")
			var list [][]byte
			for range 40 {
				bad.ID++
				list = append(list, packed(bad))
			}
			return append(list, packed(replyTo(q, "flood.example 60 A 198.51.100.66")))
		}, "Success 198.51.100.9"},
		"cut": {func(q dnsmessage.Message, tcp bool) [][]byte {
			m := replyTo(q, "cut.example 60 A 198.51.100.9")
			if !tcp {
				m.Truncated, m.Answers = true, nil
			}
			return [][]byte{packed(m)}
		}, "Success 198.51.100.9"},
		"twicecut": {func(q dnsmessage.Message, tcp bool) [][]byte {
			m := replyTo(q, "twicecut.example 60 A 198.51.100.66")
			m.Truncated = true
			return [][]byte{packed(m)}
		}, "ServerFailure"},
		"huge": {func(q dnsmessage.Message, tcp bool) [][]byte { // 4000 records
			m := replyTo(q)
			for i := range 4000 {
				m.Answers = append(m.Answers, record(fmt.Sprintf("huge.example 60 A 198.51.%d.%d", i/256, i%256)))
			}
			if !tcp {
				m.Truncated, m.Answers = true, nil
			}
			return [][]byte{packed(m)}
		}, "Success 198.51.0.0 198.51.0.1 198.51.0.2 198.51.0.3 198.51.0.4 198.51.0.5 198.51.0.6 198.51.0.7"},
		"hops": {func(q dnsmessage.Message, tcp bool) [][]byte { // 17 aliases
			lines := []string{"hops.example 60 CNAME n0.example", "n17.example 60 A 198.51.100.66"}
			for i := range 17 {
				lines = append(lines, fmt.Sprintf("n%d.example 60 CNAME n%d.example", i, i+1))
			}
			return [][]byte{packed(replyTo(q, lines...))}
		}, "ServerFailure"},
		"length": {func(q dnsmessage.Message, tcp bool) [][]byte { // an A of 6 octets
			m := packed(replyTo(q, "length.example 60 A 198.51.100.66"))
			m[len(m)-5] = 6
			return [][]byte{append(m, 0, 0)}
		}, "Success"},
	}
	var list []string
	for name := range cases {
		list = append(list, name+".example")
	}
	s := &scene{list: list}
	s.proxy.limits = defaults
	s.proxy.limits.attempt = 600 * time.Millisecond // for which the silent one takes three times
	s.answer = func(q dnsmessage.Message, tcp bool) [][]byte {
		name := strings.TrimSuffix(fold(q.Questions[0].Name), ".example")
		return cases[name].answer(q, tcp)
	}
	s.start(t)
	var all sync.WaitGroup
	for name, c := range cases {
		all.Go(func() {
			if have := s.ask(name+".example.", a); have != c.want {
				t.Errorf("%s: %q, want %q", name, have, c.want)
			}
		})
	}
	all.Wait()
	for _, r := range s.pinRequests() {
		for _, to := range r.Addresses {
			if to == netip.MustParseAddr("198.51.100.66") {
				t.Errorf("%s: a forged address is pinned", list[r.Name])
			}
		}
	}
	mixedCases := 0
	for _, name := range s.askedFor() {
		if name != strings.ToLower(name) && strings.Trim(name, " UDPTC") != strings.ToLower(strings.Trim(name, " UDPTC")) {
			mixedCases++
		}
	}
	if mixedCases < len(cases)/2 {
		t.Errorf("%d questions of %d have letters in both cases", mixedCases, len(s.askedFor()))
	}
}

func answerAlways(lines ...string) func(dnsmessage.Message, bool) [][]byte {
	return func(q dnsmessage.Message, _ bool) [][]byte { return [][]byte{packed(replyTo(q, lines...))} }
}

func withCode(code dnsmessage.RCode) func(dnsmessage.Message, bool) [][]byte {
	return sectionAlone(func(m *dnsmessage.Message) { m.RCode = code })
}

func sectionAlone(change func(*dnsmessage.Message)) func(dnsmessage.Message, bool) [][]byte {
	return func(q dnsmessage.Message, _ bool) [][]byte {
		m := replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.66")
		change(&m)
		return [][]byte{packed(m)}
	}
}

// extended is the message with the code BADCOOKIE (RFC 7873), whose lower bits are those of YXRRSET.
func extended(m dnsmessage.Message) dnsmessage.Message {
	opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
	opt.Header.SetEDNS0(1232, 16, false) // BADVERS: the lower bits are those of success
	m.Additionals = append(m.Additionals, opt)
	return m
}

// TestStrangers: messages of another sender than the resolver do not reach the proxy's socket.
func TestStrangers(t *testing.T) {
	stranger, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	ports := map[int]bool{}
	s := &scene{list: []string{"*.example"}}
	resolver, l := listenBoth(t)
	l.Close()
	defer resolver.Close()
	var task sync.WaitGroup
	defer task.Wait()
	defer resolver.Close()
	task.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := resolver.ReadFrom(buffer)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if err := q.Unpack(buffer[:n]); err != nil {
				t.Error(err)
				return
			}
			s.mu.Lock()
			ports[from.(*net.UDPAddr).Port] = true
			s.mu.Unlock()
			stranger.WriteTo(packed(replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.66")), from)
			time.Sleep(time.Millisecond)
			resolver.WriteTo(packed(replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.9")), from)
		}
	})
	s.proxy.Resolvers = []netip.AddrPort{netip.MustParseAddrPort(resolver.LocalAddr().String())}
	s.start(t)
	for i := range 40 {
		if have := s.ask(fmt.Sprintf("n%d.example.", i), a); have != "Success 198.51.100.9" {
			t.Error(have)
		}
	}
	if len(ports) < 30 {
		t.Errorf("40 questions come from %d ports", len(ports))
	}
}

// TestResolvers: the next resolver is asked if one is silent, closed or fails.
func TestResolvers(t *testing.T) {
	silent, l := listenBoth(t)
	l.Close()
	defer silent.Close()
	closed, l := listenBoth(t)
	l.Close()
	closed.Close()
	s := &scene{list: []string{"good.example"}, answer: zone("good.example A: good.example 60 A 198.51.100.9")}
	good, l := listenBoth(t)
	defer l.Close()
	var task sync.WaitGroup
	task.Go(func() { s.resolvePackets(good) })
	defer task.Wait()
	defer good.Close()
	for _, c := range []net.PacketConn{silent, closed, good} {
		s.proxy.Resolvers = append(s.proxy.Resolvers, netip.MustParseAddrPort(c.LocalAddr().String()))
	}
	s.start(t)
	if have := s.ask("good.example.", a); have != "Success 198.51.100.9" {
		t.Error(have)
	}
}

// TestGuestAlone: others get no answer, by UDP and TCP.
func TestGuestAlone(t *testing.T) {
	for guest, want := range map[string]bool{"127.0.0.0/8": true, "10.0.2.2/32": false} {
		s := &scene{list: []string{"host.internal = 10.0.2.1"}}
		s.proxy.Guest = []netip.Prefix{netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix(guest)}
		s.start(t)
		for _, network := range []string{"udp", "tcp"} {
			wait := 200 * time.Millisecond
			if want {
				wait = 20 * time.Second
			}
			if _, _, ok := s.exchange(network, packed(questionOf("host.internal.", a)), wait); ok != want {
				t.Errorf("guest %s by %s: a reply is %v", guest, network, ok)
			}
		}
	}
}

// own is a socket of the proxy.
type own struct{ net.PacketConn }

func (own) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 77), Port: 53} }

// TestResolvConf: the file is followed, also if it is replaced or missing for a while. The proxy does not ask itself.
func TestResolvConf(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+"~", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
	}
	write("search a.example\nnameserver 192.0.2.1\nnameserver none\nnameserver 127.0.0.77\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n")
	s := &scene{}
	s.proxy.ResolvConf = path
	r, err := s.proxy.newResolvers([]net.PacketConn{own{}})
	if err != nil {
		t.Fatal(err)
	}
	current := func(want ...string) {
		t.Helper()
		r.mu.Lock()
		r.looked = time.Time{}
		r.mu.Unlock()
		var have []string
		list, _ := r.current()
		for _, to := range list {
			have = append(have, to.String())
		}
		if !slices.Equal(have, want) {
			t.Errorf("resolvers %q, want %q", have, want)
		}
	}
	current("192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53")
	write("nameserver 2001:db8::1\n")
	current("[2001:db8::1]:53")
	os.Remove(path)
	current("[2001:db8::1]:53")
	write("")
	current("[2001:db8::1]:53")
	write("nameserver fe80::1%lo\n")
	current("[fe80::1%lo]:53")
	write("options edns0\n")
	current()

	missing := Proxy{ResolvConf: filepath.Join(dir, "missing")}
	if _, err := missing.newResolvers(nil); err == nil {
		t.Error("a missing file that is named is no error")
	}
}

// TestLimits: a guest that asks for much gets less, and the others of its questions are answered: questions a second,
// names of an entry with "*.", questions that wait, answers that are kept.
func TestLimits(t *testing.T) {
	s := &scene{list: []string{"*.wild.example", "good.example", "*.slow.example", "*.none.example"}}
	s.proxy.limits = defaults
	s.proxy.limits.names, s.proxy.limits.waiting, s.proxy.limits.asking, s.proxy.limits.answers, s.proxy.limits.perSecond = 5, 8, 4, 40, 100000
	s.proxy.limits.attempt = 30 * time.Second
	s.proxy.limits.all = 30 * time.Second
	s.answer = func(q dnsmessage.Message, _ bool) [][]byte {
		name := fold(q.Questions[0].Name)
		switch {
		case strings.HasSuffix(name, ".slow.example"):
			return nil
		case strings.HasSuffix(name, ".none.example"):
			return [][]byte{packed(replyTo(q))}
		}
		return [][]byte{packed(replyTo(q, name+" 300 A 198.51.100.9"))}
	}
	s.start(t)
	failed := 0
	for i := range 20 {
		switch have := s.ask(fmt.Sprintf("n%d.wild.example.", i), a); have {
		case "Success 198.51.100.9":
		case "ServerFailure":
			failed++
		default:
			t.Error(have)
		}
	}
	if failed != 15 {
		t.Errorf("%d names of 20 fail, want 15", failed)
	}
	if have := s.ask("n3.wild.example.", a); have != "Success 198.51.100.9" {
		t.Errorf("a name that has addresses: %s", have)
	}
	for i := range 200 { // answers without addresses make room
		if have := s.ask(fmt.Sprintf("n%d.none.example.", i), a); have != "Success" {
			t.Fatalf("question %d: %s", i, have)
		}
	}
	c, err := net.Dial("udp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 100 {
		c.Write(packed(questionOf(fmt.Sprintf("n%d.slow.example.", i), a)))
	}
	if have := s.ask("n3.wild.example.", a); have != "Success 198.51.100.9" {
		t.Errorf("while others wait, a name that is known: %s", have)
	}
	if have := s.ask("other.example.", a); have != "Refused" {
		t.Errorf("while others wait, a name that is refused: %s", have)
	}
	slow := 0
	for _, name := range s.askedFor() {
		if strings.Contains(strings.ToLower(name), "slow") {
			slow++
		}
	}
	if slow > 4 {
		t.Errorf("%d questions to resolvers at once", slow)
	}
	if !strings.Contains(s.logged(), "too many questions wait") || !strings.Contains(s.logged(), "too many names of the entry") {
		t.Error("the log does not say what is lost")
	}
}

// TestKept: an answer that is large is not kept, nor is one of many records; the others are.
func TestKept(t *testing.T) {
	var many []string
	for range 9 {
		many = append(many, "many.example SRV: many.example 60 SRV good.example")
	}
	s := (&scene{list: []string{"good.example"}, answer: zone(append(many, "large.example TXT: large.example 60 TXT "+strings.Repeat(strings.Repeat("x", 250)+" ", 5), "small.example TXT: small.example 60 TXT x")...)}).start(t)
	upstream, err := s.proxy.newResolvers(nil)
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(&Proxy{}, newEntries([]pinmessage.Name{{Name: "*.example"}}), upstream, nil)
	for _, c := range []struct {
		asked   question
		records int
		kept    int
	}{{question{"large.example", txt}, 1, 0}, {question{"many.example", dnsmessage.TypeSRV}, 9, 0}, {question{"small.example", txt}, 1, 1}, {question{"none.example", txt}, 0, 2}} {
		a, err := server.find(t.Context(), c.asked)
		if err != nil || len(a.bodies) != c.records || len(server.answers) != c.kept {
			t.Errorf("%v: %d records, %v; %d answers are kept, want %d", c.asked, len(a.bodies), err, len(server.answers), c.kept)
		}
	}
}

// TestLeftOut: an answer whose addresses were all left out is kept for the shortest time, as the next Setup may open
// them. One that has an address left is kept for its life.
func TestLeftOut(t *testing.T) {
	theirs, ours := conversation(t)
	defer ours.Close()
	conn, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	upstream, err := (&Proxy{Resolvers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}}).newResolvers(nil)
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(&Proxy{}, newEntries([]pinmessage.Name{{Name: "a.example"}}), upstream, conn)
	found := response{life: pinmessage.Longest}
	for _, r := range recordsOf("a.example 300 A 198.51.100.1", "a.example 300 A 198.51.100.2") {
		found.bodies = append(found.bodies, r.Body)
	}
	for pinned, longest := range []time.Duration{pinmessage.Shortest, pinmessage.Longest, pinmessage.Longest} {
		var tasks sync.WaitGroup
		tasks.Go(func() {
			message := make([]byte, pinmessage.MaxSize+1)
			n, _ := ours.Read(message)
			r, err := pinmessage.ParseRequest(message[:n], 1)
			if err != nil {
				t.Error(err)
			}
			ours.Write(pinmessage.Reply{Pinned: r.Addresses[:pinned]}.Append(nil, r))
			reply, _ := receive(conn)
			server.pins.replies <- reply
		})
		began := time.Now()
		a := server.pinned(t.Context(), question{"a.example", dnsmessage.TypeA}, found)
		tasks.Wait()
		if life := a.until.Sub(began); len(a.bodies) != pinned || life < longest || a.until.After(time.Now().Add(longest)) {
			t.Errorf("%d addresses are pinned: %d are in the answer, which is kept for %v, want %v", pinned, len(a.bodies), life, longest)
		}
	}
}

// TestCounters: each question that is one counts once, by UDP and by TCP.
func TestCounters(t *testing.T) {
	s := &scene{list: []string{"host.internal = 10.0.2.1", "good.example", "full.example", "none.example", "dead.example"}}
	s.answer = zone("good.example A: good.example 60 A 198.51.100.9", "full.example A: full.example 60 A 198.51.100.3")
	s.pin = func(r pinmessage.Request) pinmessage.Reply {
		return pinmessage.Reply{Failed: r.Name == 2, Pinned: r.Addresses}
	}
	answer := s.answer
	s.answer = func(q dnsmessage.Message, tcp bool) [][]byte {
		if fold(q.Questions[0].Name) == "dead.example" {
			return withCode(dnsmessage.RCodeRefused)(q, tcp)
		}
		return answer(q, tcp)
	}
	s.proxy.Search = []string{"cluster.local"}
	s.proxy.limits = defaults
	s.proxy.limits.perSecond = 40
	s.start(t)
	for range 2 { // the second time some are kept
		for _, network := range []string{"udp", "tcp"} {
			for _, name := range []string{"host.internal.", "good.example.", "none.example.", "other.example.", "a.cluster.local.", "full.example.", "dead.example."} {
				if _, _, ok := s.exchange(network, packed(questionOf(name, a)), 20*time.Second); !ok {
					t.Errorf("%s by %s has no answer", name, network)
				}
			}
		}
	}
	s.exchange("udp", packed(withEDNS(questionOf("good.example.", a), 512, 1)), 20*time.Second)
	if have, want := s.proxy.Counters(), (Counters{Answered: 12, Searched: 4, Refused: 4, Failed: 8}); have != want {
		t.Errorf("%+v, want %+v", have, want)
	}
	c, err := net.Dial("udp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for deadline := time.Now().Add(20 * time.Second); s.proxy.Counters().Lost == 0; c.Write(packed(questionOf("host.internal.", a))) {
		if time.Now().After(deadline) {
			t.Fatal("no question is lost")
		}
	}
}

// TestRates: questions above the limit are lost, and so are lines of the log.
func TestRates(t *testing.T) {
	s := &scene{list: []string{"host.internal = 10.0.2.1"}}
	s.proxy.limits = defaults
	s.proxy.limits.perSecond = 50
	s.start(t)
	c, err := net.Dial("udp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	for range 2000 {
		c.Write(packed(questionOf("other.example.", a)))
	}
	replies := 0
	for buffer := make([]byte, 512); ; replies++ {
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Read(buffer); err != nil {
			break
		}
	}
	if most := 50 + int(time.Since(began).Seconds()*50) + 1; replies < 10 || replies > most {
		t.Errorf("%d replies, want at most %d", replies, most)
	}
	if n := strings.Count(s.logged(), "\n"); n > 50+10*int(time.Since(began).Seconds()+1) {
		t.Errorf("%d lines", n)
	}
}

// TestConnections: a guest that opens connections and says nothing does not keep another one from an answer.
func TestConnections(t *testing.T) {
	s := &scene{list: []string{"host.internal = 10.0.2.1"}}
	s.proxy.limits = defaults
	s.proxy.limits.connections, s.proxy.limits.idle = 3, 500*time.Millisecond
	s.start(t)
	var open []net.Conn
	for range 10 {
		c, err := net.Dial("tcp", s.at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	if have := s.ask("host.internal.", a); have != "Success 10.0.2.1" {
		t.Error(have)
	}
	for _, c := range open { // all end
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if n, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("a connection that says nothing: %d, %v", n, err)
		}
	}
	if m, _, ok := s.exchange("tcp", packed(questionOf("host.internal.", a)), 20*time.Second); !ok || answerText(m) != "Success 10.0.2.1" {
		t.Error("no answer by TCP")
	}
}

// dialFrom opens a connection to the proxy from the address.
func (s *scene) dialFrom(address string) net.Conn {
	s.t.Helper()
	c, err := (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 0))}).Dial("tcp", s.at)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// send sends a question by the connection.
func send(c net.Conn, name string) {
	message := packed(questionOf(name, a))
	c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
}

// answerFrom is the text of the next answer. Empty: the connection is closed.
func answerFrom(t *testing.T, c net.Conn) string {
	t.Helper()
	var m dnsmessage.Message
	reply, err := readStream(c, 1<<16-1)
	if os.IsTimeout(err) {
		t.Error("the connection is still open")
	}
	if err != nil || m.Unpack(reply) != nil {
		return ""
	}
	return answerText(m)
}

// TestConnectionsOfOthers: a connection that is not the guest's is closed at once, and takes no place of the guest's.
func TestConnectionsOfOthers(t *testing.T) {
	s := &scene{list: []string{"host.internal = 10.0.2.1"}}
	s.proxy.Guest = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	s.proxy.limits = defaults
	s.proxy.limits.connections, s.proxy.limits.idle = 1, time.Hour
	s.start(t)
	var guest net.Conn
	for i := range 40 {
		if i == 20 {
			guest = s.dialFrom("127.0.0.1")
		}
		if n, err := s.dialFrom("127.0.0.2").Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("a stranger's connection: %d, %v", n, err)
		}
	}
	send(guest, "host.internal.")
	if have := answerFrom(t, guest); have != "Success 10.0.2.1" {
		t.Errorf("the guest's afterwards: %q", have)
	}
}

// TestIdleConnections: if all places are taken, the connection that has been idle for the longest time ends. One whose
// question waits for a resolver does not.
func TestIdleConnections(t *testing.T) {
	var answers atomic.Bool
	s := &scene{list: []string{"host.internal = 10.0.2.1", "*.slow.example"}, answer: func(q dnsmessage.Message, _ bool) [][]byte {
		if !answers.Load() {
			return nil // the proxy asks again
		}
		return [][]byte{packed(replyTo(q, fold(q.Questions[0].Name)+" 60 A 198.51.100.9"))}
	}}
	s.proxy.limits = defaults
	s.proxy.limits.connections, s.proxy.limits.idle, s.proxy.limits.attempt, s.proxy.limits.all = 3, time.Hour, 3*time.Second, time.Hour
	s.start(t)
	const want = "Success 10.0.2.1"
	var open []net.Conn
	for range 3 {
		c := s.dialFrom("127.0.0.1")
		send(c, "host.internal.")
		if have := answerFrom(t, c); have != want {
			t.Fatal(have)
		}
		open = append(open, c)
	}
	send(open[0], "host.internal.") // so that the next one has been idle for longer
	if have := answerFrom(t, open[0]); have != want {
		t.Fatal(have)
	}
	more := s.dialFrom("127.0.0.1")
	send(more, "host.internal.")
	for name, c := range map[string]struct {
		conn net.Conn
		want string
	}{"the new one": {more, want}, "the oldest one": {open[1], ""}} {
		if have := answerFrom(t, c.conn); have != c.want {
			t.Errorf("%s: %q, want %q", name, have, c.want)
		}
	}
	for i, c := range []net.Conn{open[0], open[2], more} { // all stay, and ask for more
		send(c, fmt.Sprintf("n%d.slow.example.", i))
	}
	for deadline := time.Now().Add(20 * time.Second); len(s.askedFor()) < 3 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if have := answerFrom(t, s.dialFrom("127.0.0.1")); have != "" {
		t.Errorf("one more while all wait: %q", have)
	}
	answers.Store(true)
	for _, c := range []net.Conn{open[0], open[2], more} {
		if have := answerFrom(t, c); have != "Success 198.51.100.9" {
			t.Errorf("one that waits: %q", have)
		}
	}
}

// TestServeEnds: Serve ends with the conversation, with a list that it does not understand, and without sockets.
func TestServeEnds(t *testing.T) {
	good := [][]byte{pinmessage.AppendCount(nil, 1, netip.Prefix{}), pinmessage.Name{Name: "good.example"}.Append(nil)}
	for name, c := range map[string]struct {
		messages [][]byte
		want     string
	}{
		"nothing":         {nil, "it has ended the conversation"},
		"another version": {[][]byte{{1, 0, 0, 0, 0}}, "same version"},
		"half a list":     {good[:1], "it has ended the conversation"},
		"no name":         {[][]byte{good[0], {7}}, "same version"},
		"the whole list":  {good, "it has ended the conversation"},
		"a long message":  {[][]byte{make([]byte, 4096)}, "same version"},
	} {
		theirs, ours := conversation(t)
		for _, m := range c.messages {
			if _, err := ours.Write(m); err != nil {
				t.Fatal(err)
			}
		}
		ours.Close()
		p := Proxy{Pins: theirs, Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}}
		if err := p.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	theirs, ours := conversation(t)
	defer ours.Close()
	ended := Proxy{Pins: theirs, Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}}
	if err := ended.Serve(ctx); err != nil {
		t.Errorf("after the end of ctx: %v", err)
	}
	theirs, ours = conversation(t)
	defer ours.Close()
	for _, p := range []*Proxy{{}, {Pins: theirs}} {
		if err := p.Serve(t.Context()); err == nil {
			t.Errorf("a proxy with the socket %v serves", p.Pins)
		}
	}
}
