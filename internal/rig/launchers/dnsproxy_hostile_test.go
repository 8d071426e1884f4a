package launchers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// hostile are messages that ask nothing.
func hostile() map[string][]byte {
	good := pack(new(dns.Msg).SetQuestion("good.example.", dns.TypeA))
	two := new(dns.Msg).SetQuestion("good.example.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	reply := new(dns.Msg).SetReply(new(dns.Msg).SetQuestion("good.example.", dns.TypeA))
	update := new(dns.Msg).SetQuestion("good.example.", dns.TypeA)
	update.Opcode = dns.OpcodeUpdate
	counts := slices.Clone(good)
	copy(counts[4:], strings.Repeat("\xff", 8))
	pointer := append(slices.Clone(good[:12]), 0xc0, 0x0c, 0, 1, 0, 1)
	chain := slices.Clone(good[:12]) // each pointer leads to the next one
	for i := range 200 {
		chain = append(chain, 0xc0|byte((14+2*i)>>8), byte(14+2*i))
	}
	garbage := make([]byte, 400)
	for i := range garbage {
		garbage[i] = byte(rand.Uint32())
	}
	return map[string][]byte{
		"empty": {}, "one octet": {0}, "a header alone": good[:12], "half a header": good[:7], "half a name": good[:17], "no class": good[:len(good)-2],
		"two questions": pack(two), "no question": make([]byte, 12), "a reply": pack(reply), "an update": pack(update), "65535 of all": counts,
		"a pointer to itself": pointer, "pointers": chain, "a long label": append(slices.Clone(good[:12]), strings.Repeat("\x3f"+strings.Repeat("a", 63), 6)...),
		"garbage": garbage, "a header of garbage": append(slices.Clone(good[:12]), garbage...), "ones": []byte(strings.Repeat("\xff", 512)), "1400 octets": make([]byte, 1400),
	}
}

// TestHostileDNSProxy: nothing that the guest, a neighbour or the resolver sends ends the proxy. What is no answer to
// the question pins nothing. A neighbour gets no answer, and pins nothing for the guest.
func TestHostileDNSProxy(t *testing.T) {
	names := []string{"good.example.", "silent.example.", "source.example."}
	for name := range wrong {
		names = append(names, name)
	}
	p := newProxied(t, names...)
	p.World.IP("route add 10.0.2.0/24 via " + nstest.Pod4.String())
	for of, ns := range map[string]*os.File{"guest": p.guest.File, "neighbour": p.World.File} {
		if err := netns.Do(ns, func() error {
			c, err := net.Dial("udp", proxyAt)
			if err != nil {
				return err
			}
			defer c.Close()
			for name, message := range hostile() {
				if _, err := c.Write(message); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			c.SetReadDeadline(time.Now().Add(time.Second))
			if n, err := c.Read(make([]byte, 512)); err == nil {
				return fmt.Errorf("an answer of %d octets", n)
			}
			return nil
		}); err != nil {
			t.Errorf("the %s: %v", of, err)
		}
	}
	if err := netns.Do(p.World.File, func() error {
		client := dns.Client{Timeout: time.Second}
		if reply, _, err := client.Exchange(new(dns.Msg).SetQuestion("good.example.", dns.TypeA), proxyAt); err == nil {
			return fmt.Errorf("the answer %v", reply)
		}
		return nil
	}); err != nil {
		t.Error("a neighbour:", err)
	}
	if n := p.pins(); n > 0 {
		t.Errorf("a neighbour's question pins %d addresses", n)
	}
	var asked sync.WaitGroup
	for _, name := range names[1:] {
		asked.Go(func() {
			addresses, err := p.ask(name, dns.TypeA)
			if len(addresses) > 0 || err != nil && err.Error() != "SERVFAIL" && err.Error() != "NXDOMAIN" {
				t.Errorf("%s: %v, %v", name, addresses, err)
			}
		})
	}
	asked.Wait()
	if n := p.pins(); n > 0 {
		t.Errorf("what is no answer pins %d addresses:\n%s", n, p.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"))
	}
	if addresses, err := p.ask("good.example.", dns.TypeA); err != nil || !slices.Equal(addresses, []string{"198.51.100.9"}) {
		t.Errorf("good.example: %v, %v", addresses, err)
	}
	if n := p.pins(); n != 1 {
		t.Errorf("%d pins, want 1", n)
	}
	if n := p.starts.Load(); n != 1 {
		t.Errorf("the proxy was started %d times", n)
	}
}

// TestDNSProxyBounds: a name whose resolver answers with other addresses each time does not fill the pins, and
// questions about a name that is not answered take neither memory nor sockets. Other names are answered meanwhile.
func TestDNSProxyBounds(t *testing.T) {
	p := newProxied(t, "many.example.", "silent.example.", "good.example.")
	before := time.Now()
	for i := range 300 {
		addresses, err := p.ask("many.example.", dns.TypeA)
		if err != nil || len(addresses) != mostAddresses {
			t.Fatalf("question %d: %v, %v", i, addresses, err)
		}
	}
	// A pin lives for two answers' time.
	if most := mostAddresses * (2 + int(time.Since(before)/shortest)); p.pins() > min(most, 3*mostAddresses) {
		t.Errorf("%d pins", p.pins())
	}
	if err := netns.Do(p.guest.File, func() error {
		c, err := net.Dial("udp", proxyAt)
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range 7000 {
			m := new(dns.Msg).SetQuestion("silent.example.", dns.TypeA)
			m.Id = uint16(i)
			if _, err := c.Write(pack(m)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.proxy.Load().Process.Pid))
	if err != nil || len(files) > 20 {
		t.Errorf("%d files, %v", len(files), err)
	}
	nstest.Eventually(t, func() error {
		if addresses, err := p.ask("good.example.", dns.TypeA); err != nil || len(addresses) != 1 {
			return fmt.Errorf("good.example: %v, %v", addresses, err)
		}
		return nil
	})
	if n := p.starts.Load(); n != 1 {
		t.Errorf("the proxy was started %d times", n)
	}
}

// FuzzDNSQuestion: no message ends the proxy. What another parser takes for one question of the guest gets one reply,
// with the question and its number.
func FuzzDNSQuestion(f *testing.F) {
	for _, message := range hostile() {
		f.Add(message)
	}
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	f.Add(pack(new(dns.Msg).SetQuestion("good.example.", dns.TypeA)))
	f.Add(pack(new(dns.Msg).SetQuestion("gOOd.example.", dns.TypeANY).SetEdns0(1232, true)))
	name := dnsmessage.MustNewName("good.example.")
	known := &answer{until: time.Now().Add(time.Hour), Answer: Answer{Addresses: []netip.Addr{lab.Beyond4}}}
	p := &proxy{answers: map[dnsmessage.Question]*answer{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}: known}}
	f.Fuzz(func(t *testing.T, message []byte) {
		packed := p.reply(message)
		var asked, reply dns.Msg
		if packed == nil {
			return
		}
		if err := errors.Join(asked.Unpack(message), reply.Unpack(packed)); err != nil || len(packed) > 512 {
			t.Fatalf("%d octets, %v", len(packed), err)
		}
		if !reply.Response || reply.Id != asked.Id || !slices.Equal(reply.Question, asked.Question) {
			t.Errorf("%v\nis answered by\n%v", &asked, &reply)
		}
		q := asked.Question[0]
		if is := dns.CanonicalName(q.Name) == "good.example." && q.Qtype == dns.TypeA && q.Qclass == dns.ClassINET; is != (len(reply.Answer) == 1) {
			t.Errorf("%v\nis answered by\n%v", &asked, &reply)
		}
	})
}

// FuzzDNSAnswer: no reply of a resolver ends the proxy. What it takes from a reply is, for another parser, an address
// of the question's name or of one of its aliases, in a reply without an error to this question.
func FuzzDNSAnswer(f *testing.F) {
	const id = 7
	q := dns.Question{Name: "good.example.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	for _, lines := range zone {
		f.Add(pack(replyTo(q, id, lines...)))
	}
	f.Add(pack(replyTo(q, id, slices.Repeat([]string{"good.example. 4294967295 IN A 198.51.100.9"}, 20)...)))
	for _, change := range wrong {
		r := replyTo(q, id, "good.example. 1 IN A 198.51.100.9")
		if b := change(r); b != nil {
			f.Add(b)
		} else {
			f.Add(pack(r))
		}
	}
	asked := dnsmessage.Question{Name: dnsmessage.MustNewName(q.Name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	f.Fuzz(func(t *testing.T, message []byte) {
		a, ok := answerIn(message, id, asked)
		if !ok || len(a.Addresses) == 0 {
			return
		}
		var m dns.Msg
		if err := m.Unpack(message); err != nil {
			return // it is stricter
		}
		if !m.Response || m.Id != id || m.Rcode != 0 || m.Truncated || len(m.Question) != 1 || dns.CanonicalName(m.Question[0].Name) != q.Name {
			t.Errorf("%v is taken from\n%v", a, &m)
		}
		if len(a.Addresses) > mostAddresses || a.Life < shortest || a.Life > longest {
			t.Errorf("%v is too much", a)
		}
		owners := map[string]bool{q.Name: true}
		var addresses []string
		for _, r := range m.Answer {
			if !owners[dns.CanonicalName(r.Header().Name)] || r.Header().Class != dns.ClassINET {
				continue
			}
			switch r := r.(type) {
			case *dns.CNAME:
				owners[dns.CanonicalName(r.Target)] = true
			case *dns.A:
				addresses = append(addresses, r.A.String())
			}
		}
		for _, to := range a.Addresses {
			if !slices.Contains(addresses, to.String()) {
				t.Errorf("%v is taken from\n%v", to, &m)
			}
		}
	})
}

func replyTo(q dns.Question, id uint16, lines ...string) *dns.Msg {
	r := new(dns.Msg).SetReply(&dns.Msg{MsgHdr: dns.MsgHdr{Id: id}, Question: []dns.Question{q}})
	for _, line := range lines {
		r.Answer = append(r.Answer, record(line))
	}
	return r
}
