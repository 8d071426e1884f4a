package names

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/pinmessage"
	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// record is a resource of a line such as "a.example 60 A 198.51.100.9".
func record(line string) dnsmessage.Resource {
	words := strings.Fields(line)
	ttl, err := strconv.ParseUint(words[1], 10, 32)
	if err != nil {
		panic(line)
	}
	r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(words[0] + "."), Class: dnsmessage.ClassINET, TTL: uint32(ttl)}}
	switch words[2] {
	case "A":
		r.Body = &dnsmessage.AResource{A: netip.MustParseAddr(words[3]).As4()}
	case "AAAA":
		r.Body = &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(words[3]).As16()}
	case "CNAME":
		r.Body = &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(words[3] + ".")}
	case "TXT":
		r.Body = &dnsmessage.TXTResource{TXT: words[3:]}
	case "SRV":
		r.Body = &dnsmessage.SRVResource{Port: 27017, Target: dnsmessage.MustNewName(words[3] + ".")}
	case "HTTPS": // HTTPS PRIORITY TARGET KEY=VALUE...
		service := dnsmessage.SVCBResource{Target: dnsmessage.MustNewName(words[4])}
		fmt.Sscan(words[3], &service.Priority)
		for _, word := range words[5:] {
			key, value, _ := strings.Cut(word, "=")
			n, err := strconv.Atoi(key)
			if err != nil {
				panic(line)
			}
			service.Params = append(service.Params, dnsmessage.SVCParam{Key: dnsmessage.SVCParamKey(n), Value: []byte(value)})
		}
		r.Body = &dnsmessage.HTTPSResource{SVCBResource: service}
	default:
		panic(line)
	}
	return r
}

func recordsOf(lines ...string) (list []dnsmessage.Resource) {
	for _, line := range lines {
		list = append(list, record(line))
	}
	return list
}

// text is a record as a line, with no more than its type and value.
func text(r dnsmessage.Resource) string {
	switch b := r.Body.(type) {
	case *dnsmessage.AResource, *dnsmessage.AAAAResource:
		return addressOf(b).String()
	case *dnsmessage.TXTResource:
		return "TXT " + strings.Join(b.TXT, " ")
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("SRV %d %s", b.Port, b.Target)
	case *dnsmessage.HTTPSResource:
		line := fmt.Sprintf("HTTPS %d %s", b.Priority, b.Target)
		for _, p := range b.Params {
			line += fmt.Sprintf(" %d=%s", p.Key, p.Value)
		}
		return line
	}
	return fmt.Sprintf("%T", r.Body)
}

func packed(m dnsmessage.Message) []byte {
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// replyTo is a reply with the records.
func replyTo(q dnsmessage.Message, lines ...string) dnsmessage.Message {
	return dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}, Questions: q.Questions, Answers: recordsOf(lines...)}
}

// scene is a proxy with resolvers, and the process that pins for it.
type scene struct {
	nat64    netip.Prefix // the site's
	t        testing.TB
	at       string   // of the proxy
	resolver string   // of the fake one
	list     []string // names, as "*.example", "db.example private", "host.internal = 10.0.2.1"
	proxy    Proxy
	end      func() error

	// answer returns the messages that the resolver sends for a question, by UDP or TCP.
	answer func(q dnsmessage.Message, tcp bool) [][]byte
	// pin replies to a request. Nil: all is pinned.
	pin func(pinmessage.Request) pinmessage.Reply

	mu       sync.Mutex
	asked    []string             // names that the resolver was asked for, with their case, and how
	messages []dnsmessage.Message // that the resolver got
	requests []pinmessage.Request
	log      bytes.Buffer
}

func (s *scene) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(line)
}

func (s *scene) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func (s *scene) askedFor() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (s *scene) pinRequests() []pinmessage.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// zone answers by lines, such as "a.example A: 60 A 198.51.100.9". A name that has none does not exist.
func zone(lines ...string) func(q dnsmessage.Message, tcp bool) [][]byte {
	return func(q dnsmessage.Message, _ bool) [][]byte {
		name := fold(q.Questions[0].Name)
		var answers []string
		exists := false
		for _, line := range lines {
			of, rest, _ := strings.Cut(line, ": ")
			owner, kind, _ := strings.Cut(of, " ")
			if owner != name {
				continue
			}
			exists = true
			if "Type"+kind == q.Questions[0].Type.String() {
				answers = append(answers, rest)
			}
		}
		m := replyTo(q, answers...)
		if !exists {
			m.RCode = dnsmessage.RCodeNameError
		}
		return [][]byte{packed(m)}
	}
}

// start starts what the scene says.
func (s *scene) start(t testing.TB) *scene {
	t.Helper()
	s.t = t
	theirs, keeper := conversation(t)
	var tasks sync.WaitGroup
	resolver, streams := listenBoth(t)
	s.resolver = resolver.LocalAddr().String()
	socket, stream := listenBoth(t)
	s.at = socket.LocalAddr().String()
	s.proxy.Pins, s.proxy.Packets, s.proxy.Streams = theirs, []net.PacketConn{socket}, []net.Listener{stream}
	if s.proxy.Resolvers == nil && s.proxy.ResolvConf == "" {
		s.proxy.Resolvers = []netip.AddrPort{netip.MustParseAddrPort(s.resolver)}
	}
	s.proxy.Log = slog.New(slog.NewTextHandler(s, nil))
	tasks.Go(func() { s.keep(keeper) })
	tasks.Go(func() { s.resolvePackets(resolver) })
	tasks.Go(func() { s.resolveStreams(streams, &tasks) })
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.proxy.Serve(ctx) }()
	s.end = sync.OnceValue(func() error {
		cancel()
		err := <-served
		keeper.Close()
		resolver.Close()
		streams.Close()
		tasks.Wait()
		return err
	})
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	return s
}

// conversation returns the two ends of a socket, that of the proxy and that of phase1/pins.
func conversation(t testing.TB) (theirs *os.File, ours net.Conn) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(pair[0]), "ours")
	defer file.Close()
	if ours, err = net.FileConn(file); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(pair[1]), "pins"), ours
}

func listenBoth(t testing.TB) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if c, err := net.ListenPacket("udp", l.Addr().String()); err == nil {
			return c, l
		}
		l.Close()
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

// keep is what phase1/pins does.
func (s *scene) keep(c net.Conn) {
	c.Write(pinmessage.AppendCount(nil, len(s.list), s.nat64))
	for _, text := range s.list {
		c.Write(nameOf(text).Append(nil))
	}
	message := make([]byte, pinmessage.MaxSize+1)
	n, err := c.Read(message)
	if err != nil {
		return
	}
	if err := pinmessage.CheckReady(message[:n]); err != nil {
		s.t.Error(err)
		return
	}
	for {
		n, err := c.Read(message)
		if err != nil {
			return
		}
		r, err := pinmessage.ParseRequest(message[:n], len(s.list))
		if err != nil {
			s.t.Error(err)
			return
		}
		s.mu.Lock()
		s.requests = append(s.requests, r)
		s.mu.Unlock()
		reply := pinmessage.Reply{Pinned: r.Addresses}
		if s.pin != nil {
			reply = s.pin(r)
		}
		c.Write(reply.Append(nil, r))
	}
}

func nameOf(text string) pinmessage.Name {
	words := strings.Fields(text)
	n := pinmessage.Name{Name: words[0], Private: slices.Contains(words, "private")}
	if len(words) > 2 {
		for _, word := range words[2:] {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(word))
		}
	}
	return n
}

func (s *scene) resolve(message []byte, tcp bool) [][]byte {
	var q dnsmessage.Message
	if err := q.Unpack(message); err != nil {
		s.t.Errorf("the resolver gets %x: %v", message, err)
		return nil
	}
	how := "UDP"
	if tcp {
		how = "TCP"
	}
	s.mu.Lock()
	s.asked = append(s.asked, q.Questions[0].Name.String()+" "+how)
	s.messages = append(s.messages, q)
	s.mu.Unlock()
	return s.answer(q, tcp)
}

func (s *scene) resolvePackets(c net.PacketConn) {
	buffer := make([]byte, 4096)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return
		}
		for _, m := range s.resolve(buffer[:n], false) {
			c.WriteTo(m, from)
		}
	}
}

func (s *scene) resolveStreams(l net.Listener, tasks *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		tasks.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(30 * time.Second))
			message, err := readStream(c, 1<<16-1)
			if err != nil {
				return
			}
			for _, m := range s.resolve(message, true) {
				c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...))
			}
		})
	}
}

// questionOf is a guest's question.
func questionOf(name string, kind dnsmessage.Type) dnsmessage.Message {
	return dnsmessage.Message{Header: dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
}

func withEDNS(m dnsmessage.Message, size, version int, options ...dnsmessage.Option) dnsmessage.Message {
	opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{Options: options}}
	opt.Header.SetEDNS0(size, 0, true)
	opt.Header.TTL |= uint32(version) << 16
	m.Additionals = append(m.Additionals, opt)
	return m
}

// exchange sends the message to the proxy, and returns the reply. No reply: not ok.
func (s *scene) exchange(network string, message []byte, wait time.Duration) (m dnsmessage.Message, size int, ok bool) {
	s.t.Helper()
	c, err := net.Dial(network, s.at)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	reply := make([]byte, 1<<16)
	if network == "tcp" {
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
		reply, err = readStream(c, 1<<16-1)
		size = len(reply)
	} else {
		c.Write(message)
		size, err = c.Read(reply)
	}
	if err != nil {
		return m, 0, false
	}
	if err := m.Unpack(reply[:size]); err != nil {
		s.t.Fatalf("the proxy sends %x: %v", reply[:size], err)
	}
	return m, size, true
}

// ask returns the code and the records of the answer, each as text.
func (s *scene) ask(name string, kind dnsmessage.Type) string {
	s.t.Helper()
	m, _, ok := s.exchange("udp", packed(questionOf(name, kind)), 20*time.Second)
	if !ok {
		return "no reply"
	}
	return answerText(m)
}

func answerText(m dnsmessage.Message) string {
	line := strings.TrimPrefix(m.RCode.String(), "RCode")
	if m.Truncated {
		line += " truncated"
	}
	for _, r := range m.Answers {
		if m.Questions[0].Name != r.Header.Name {
			line += " of " + r.Header.Name.String()
		}
		line += " " + text(r)
	}
	return line
}
