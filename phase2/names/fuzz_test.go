package names

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/pinmessage"
)

// FuzzQuery: no message of the guest ends the proxy. A reply has the question and its number, and fits.
func FuzzQuery(f *testing.F) {
	good := packed(questionOf("good.example.", a))
	f.Add(good)
	f.Add(packed(withEDNS(questionOf("gOOd.example.", dnsmessage.TypeALL), 1232, 0, dnsmessage.Option{Code: 8, Data: []byte{0, 1, 24, 0}})))
	f.Add(packed(withEDNS(questionOf("large.example.", txt), 700, 1)))
	f.Add(packed(replyTo(questionOf("good.example.", a), "good.example 1 A 198.51.100.9")))
	f.Add(good[:12])
	f.Add(append(slices.Clone(good[:12]), 0xc0, 0x0c, 0, 1, 0, 1))
	f.Add(append(slices.Clone(good[:12]), strings.Repeat("\x3f"+strings.Repeat("a", 63), 6)...))
	f.Add([]byte(strings.Repeat("\xff", 512)))
	now := time.Now()
	large := &dnsmessage.TXTResource{TXT: slices.Repeat([]string{strings.Repeat("x", 250)}, 8)}
	answers := []answer{{code: dnsmessage.RCodeRefused, why: reason{blocked, "why"}}, {bodies: []dnsmessage.ResourceBody{record("a 1 A 198.51.100.9").Body}, until: now.Add(time.Minute)}, {bodies: []dnsmessage.ResourceBody{large}}}
	f.Fuzz(func(t *testing.T, message []byte) {
		q, ok := parseQuery(message)
		if !ok {
			return
		}
		if len(q.asked) == 0 && q.code == 0 {
			t.Fatal("no question, and no error")
		}
		for _, a := range answers {
			if q.code != 0 {
				a = answer{code: q.code}
			}
			packed := q.reply(a, now, q.size)
			var reply dnsmessage.Message
			if err := reply.Unpack(packed); err != nil || len(packed) > q.size || q.size > largest {
				t.Fatalf("%x gets %x (%d octets): %v", message, packed, len(packed), err)
			}
			if !reply.Response || reply.ID != uint16(message[0])<<8|uint16(message[1]) || !slices.Equal(reply.Questions, q.asked) {
				t.Errorf("%x gets %+v", message, reply)
			}
			for _, r := range reply.Answers {
				if r.Header.Name != q.asked[0].Name {
					t.Errorf("an answer about %v", r.Header.Name)
				}
			}
		}
	})
}

// FuzzResponse: no reply of a resolver ends the proxy. What is taken from it is in a message without an error, with
// this number and question, and is of the name or of an alias; the guest gets it in a message of which no record is
// lost.
func FuzzResponse(f *testing.F) {
	kinds := []dnsmessage.Type{a, aaaa, https, txt, dnsmessage.TypeSRV}
	q := questionOf("good.example.", a)
	for i, lines := range [][]string{
		{"good.example 1 A 198.51.100.9", "good.example 4294967295 A 198.51.100.10"}, {"good.example 60 AAAA 2001:db8::9", "good.example 60 AAAA ::ffff:198.51.100.9"},
		{"good.example 60 HTTPS 1 . 1=h2 4=aaaa 5=ech", "good.example 60 HTTPS 0 other.example."}, {"good.example 60 TXT hello"}, {"_x.good.example 60 SRV good.example"},
		{"good.example 60 CNAME a.example", "a.example 60 CNAME b.example", "b.example 60 A 198.51.100.9"}, {"good.example 60 CNAME a.example", "a.example 60 CNAME good.example"},
	} {
		q.Questions[0].Type = kinds[i%len(kinds)]
		if i > 4 {
			q.Questions[0].Type = a
		}
		m := replyTo(q, lines...)
		f.Add(packed(m), byte(i))
		m.Truncated = true
		f.Add(packed(extended(m)), byte(i))
	}
	f.Fuzz(func(t *testing.T, message []byte, kind byte) {
		asked := dnsmessage.Question{Name: dnsmessage.MustNewName("good.example."), Type: kinds[int(kind)%len(kinds)], Class: dnsmessage.ClassINET}
		r, is := parseResponse(message, q.ID, asked)
		if is == foreign || is == truncated || len(r.bodies) == 0 {
			return
		}
		if r.life < pinmessage.Shortest || r.life > pinmessage.Longest || len(r.bodies) > mostOf(asked.Type) || r.code != 0 || message[2]&0x80 == 0 || message[3]&0xf != 0 {
			t.Errorf("%+v of %x", r, message)
		}
		var p dnsmessage.Parser
		if _, err := p.Start(message); err != nil {
			t.Fatal(err)
		}
		p.SkipAllQuestions()
		found := 0
		for range 1 << 16 {
			h, err := p.AnswerHeader()
			if err != nil {
				break
			}
			if h.Type == asked.Type {
				found++
			}
			if p.SkipAnswer() != nil {
				break
			}
		}
		if found < len(r.bodies) {
			t.Errorf("%d records, and %d are taken", found, len(r.bodies))
		}
		guest := query{asked: []dnsmessage.Question{asked}, edns: true}
		packed := guest.reply(answer{bodies: r.bodies}, time.Now(), 1<<16-1)
		var reply dnsmessage.Message
		if err := reply.Unpack(packed); err != nil || reply.RCode == 0 && !reply.Truncated && len(reply.Answers) != len(r.bodies) {
			t.Errorf("the guest gets %x: %v", packed, err)
		}
		if isAddress(asked.Type) && len(packed) > smallest {
			t.Errorf("%d octets", len(packed))
		}
	})
}
