package launchers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

const (
	shortest, longest = 5 * time.Second, 5 * time.Minute // for which the guest may use an answer
	grace             = 5 * time.Second                  // for a connection that it opens at the last moment
	mostAddresses     = 8                                // of an answer, so that it fits into 512 octets
	atOnce            = 32                               // questions; a few more wait in the socket, others are lost
	mostStarts        = 5                                // of proxies that end within a minute
)

// Answer is what the halves send each other: addresses that the proxy has found, and those that are pinned.
type Answer struct {
	Addresses []netip.Addr
	Life      time.Duration
	Code      dnsmessage.RCode
}

func receive(from *os.File) (a Answer, err error) {
	message := make([]byte, 4096) // of a longer one the rest is lost, and the beginning is no JSON
	n, err := from.Read(message)
	if err == nil {
		err = json.Unmarshal(message[:n], &a)
	}
	return a, err
}

// RunProxy is the privileged half: it runs the proxy as the owner, and pins what it finds, at these ports alone. A
// proxy that ends is started again, until it ends too often. When ctx is done, RunProxy returns nil.
func RunProxy(ctx context.Context, nic phase1.NIC, owner infra.Owner, ports []infra.Ports, proxy func() *exec.Cmd) error {
	for starts := 1; ; starts++ {
		began := time.Now()
		err := runOnce(ctx, nic, owner, ports, proxy())
		if time.Since(began) > time.Minute {
			starts = 1
		}
		if ctx.Err() != nil {
			return nil
		} else if starts == mostStarts {
			return err
		}
		fmt.Fprintln(os.Stderr, "DNS proxy:", err)
	}
}

func runOnce(ctx context.Context, nic phase1.NIC, owner infra.Owner, ports []infra.Ports, proxy *exec.Cmd) error {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "proxy"), os.NewFile(uintptr(pair[1]), "launcher")
	defer ours.Close()
	proxy.ExtraFiles = []*os.File{theirs} // its file 3
	err = launch.Start(proxy, nic.NetNS, owner)
	theirs.Close()
	if err != nil {
		return err
	}
	for err == nil {
		var a Answer
		if a, err = receive(ours); err == nil {
			err = json.NewEncoder(ours).Encode(pin(ctx, nic, ports, a))
		}
	}
	return errors.Join(err, proxy.Process.Kill(), proxy.Wait())
}

// pin returns what of the answer is pinned.
func pin(ctx context.Context, nic phase1.NIC, ports []infra.Ports, a Answer) Answer {
	a.Addresses = a.Addresses[:min(len(a.Addresses), mostAddresses)]
	err := nic.Pin(ctx, a.Addresses, ports, grace+max(shortest, min(a.Life, longest)))
	var left *phase1.PinError
	switch {
	case err == nil:
		return a
	case errors.As(err, &left):
		a.Addresses = slices.DeleteFunc(a.Addresses, func(a netip.Addr) bool { return slices.Contains(left.LeftOut, a) })
	default:
		a.Addresses, a.Code = nil, dnsmessage.RCodeServerFailure
	}
	fmt.Fprintln(os.Stderr, err)
	return a
}

// proxy is the unprivileged half. It keeps each answer for its life. So a name has the pins of two answers at most,
// however often the guest asks.
type proxy struct {
	resolver netip.AddrPort
	launcher *os.File
	asking   sync.Mutex // the launcher
	answers  map[dnsmessage.Question]*answer
}

type answer struct {
	sync.Mutex
	Answer
	until time.Time
}

// Proxy answers the guest's questions about the names, once what it answers is pinned. The process ends with it.
func Proxy(at, resolver netip.AddrPort, guest netip.Addr, names []string) error {
	p := &proxy{resolver: resolver, launcher: os.NewFile(3, "launcher"), answers: map[dnsmessage.Question]*answer{}}
	for _, name := range names {
		n, err := dnsmessage.NewName(name)
		if err != nil {
			return err
		}
		for _, t := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			p.answers[dnsmessage.Question{Name: lower(n), Type: t, Class: dnsmessage.ClassINET}] = &answer{}
		}
	}
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	ended := make(chan error)
	for range atOnce {
		go func() {
			for message := make([]byte, 512); ; {
				n, from, err := socket.ReadFromUDPAddrPort(message)
				if err != nil {
					ended <- err
				} else if from.Addr().Unmap() == guest {
					if reply := p.reply(message[:n]); reply != nil {
						socket.WriteToUDPAddrPort(reply, from)
					}
				}
			}
		}()
	}
	return <-ended
}

// reply answers a message that asks one question; nil: another one.
func (p *proxy) reply(message []byte) []byte {
	var asked dnsmessage.Message
	if asked.Unpack(message) != nil || asked.Response || asked.OpCode != 0 || len(asked.Questions) != 1 {
		return nil
	}
	q := asked.Questions[0]
	reply := dnsmessage.Message{Questions: asked.Questions, Header: dnsmessage.Header{ID: asked.ID, Response: true,
		RecursionDesired: asked.RecursionDesired, RecursionAvailable: true, RCode: dnsmessage.RCodeRefused}}
	if a := p.answers[dnsmessage.Question{Name: lower(q.Name), Type: q.Type, Class: q.Class}]; a != nil {
		a.Lock()
		defer a.Unlock()
		if time.Until(a.until) <= 0 {
			a.Answer = p.find(dnsmessage.Question{Name: lower(q.Name), Type: q.Type, Class: q.Class})
			a.until = time.Now().Add(a.Life)
		}
		reply.RCode = a.Code
		r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: uint32(time.Until(a.until) / time.Second)}}
		for _, to := range a.Addresses {
			if r.Body = (&dnsmessage.AAAAResource{AAAA: to.As16()}); to.Is4() {
				r.Body = &dnsmessage.AResource{A: to.As4()}
			}
			reply.Answers = append(reply.Answers, r)
		}
	}
	packed, _ := reply.Pack()
	return packed
}

// find is what the resolver answers, if the launcher pins it.
func (p *proxy) find(q dnsmessage.Question) Answer {
	failed := Answer{Life: shortest, Code: dnsmessage.RCodeServerFailure}
	a, err := ask(p.resolver, q)
	if err == nil && len(a.Addresses) > 0 {
		p.asking.Lock()
		defer p.asking.Unlock()
		if err = json.NewEncoder(p.launcher).Encode(a); err == nil {
			a, err = receive(p.launcher)
		}
	}
	if err != nil {
		return failed
	}
	if len(a.Addresses) == 0 {
		a.Life = shortest
	}
	return a
}

// ask asks the resolver, three times.
func ask(resolver netip.AddrPort, q dnsmessage.Question) (a Answer, err error) {
	question := dnsmessage.Message{Header: dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: true}, Questions: []dnsmessage.Question{q}}
	octets := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Class: 1232} // of the reply (RFC 6891)
	question.Additionals = []dnsmessage.Resource{{Header: octets, Body: &dnsmessage.OPTResource{}}}
	packed, err := question.Pack()
	if err != nil {
		return a, err
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(resolver)) // receives from there alone
	if err != nil {
		return a, err
	}
	defer c.Close()
	message := make([]byte, 1232)
	for range 3 {
		c.SetDeadline(time.Now().Add(time.Second))
		_, err = c.Write(packed)
		for n := 0; err == nil; {
			if n, err = c.Read(message); err == nil {
				if a, ok := answerIn(message[:n], question.ID, q); ok {
					return a, nil
				}
			}
		}
	}
	return a, err
}

// answerIn is what a message answers: the addresses of the question's name, or of the one that it stands for. Not ok:
// the message is not the reply.
func answerIn(message []byte, id uint16, q dnsmessage.Question) (a Answer, ok bool) {
	var m dnsmessage.Message
	if m.Unpack(message) != nil || !m.Response || m.ID != id || len(m.Questions) != 1 {
		return a, false
	}
	if m.Questions[0].Name = lower(m.Questions[0].Name); m.Questions[0] != q {
		return a, false
	}
	if a.Code = m.RCode; m.RCode != dnsmessage.RCodeSuccess || m.Truncated {
		if m.RCode != dnsmessage.RCodeNameError {
			a.Code = dnsmessage.RCodeServerFailure
		}
		return a, true
	}
	name := q.Name
	a.Life = longest
	for _, r := range m.Answers { // each alias before what it stands for
		if lower(r.Header.Name) != name || r.Header.Class != q.Class || len(a.Addresses) == mostAddresses {
			continue
		}
		var to netip.Addr
		switch b := r.Body.(type) {
		case *dnsmessage.CNAMEResource:
			name = lower(b.CNAME)
		case *dnsmessage.AResource:
			to = netip.AddrFrom4(b.A)
		case *dnsmessage.AAAAResource:
			to = netip.AddrFrom16(b.AAAA)
		}
		if r.Header.Type == q.Type && int(r.Header.Length) == to.BitLen()/8 && !to.Is4In6() {
			a.Addresses = append(a.Addresses, to)
		}
		a.Life = max(shortest, min(a.Life, time.Duration(r.Header.TTL)*time.Second))
	}
	return a, true
}

// lower is the name in lower case, as names are compared.
func lower(name dnsmessage.Name) dnsmessage.Name {
	for i, c := range name.Data[:name.Length] {
		if 'A' <= c && c <= 'Z' {
			name.Data[i] = c + 'a' - 'A'
		}
	}
	return name
}
