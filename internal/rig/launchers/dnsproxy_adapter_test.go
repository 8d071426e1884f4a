package launchers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

const (
	longest = 300             // seconds for which the guest may use an answer
	grace   = 5 * time.Second // for a connection that it opens at the last moment
)

// Answer is what the halves send each other: addresses that the proxy has found, and those that are pinned.
type Answer struct {
	Addresses []netip.Addr
	Seconds   uint32
}

func receive(from *os.File) (a Answer, err error) {
	message := make([]byte, 4096) // of a longer one the rest is lost, and the beginning is no JSON
	n, err := from.Read(message)
	if err == nil {
		err = json.Unmarshal(message[:n], &a)
	}
	return a, err
}

// RunProxy is the privileged half: it runs the proxy as the owner, and pins what it finds, at these ports alone.
func RunProxy(ctx context.Context, nic phase1.NIC, owner infra.Owner, ports []infra.Ports, proxy *exec.Cmd) error {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "proxy"), os.NewFile(uintptr(pair[1]), "launcher")
	defer ours.Close()
	proxy.ExtraFiles = []*os.File{theirs} // its file 3
	err = phase1.Launch(proxy, nic.NetNS, owner)
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
	err := nic.Pin(ctx, a.Addresses, ports, grace+time.Duration(min(a.Seconds, longest))*time.Second)
	var left *phase1.PinError
	switch {
	case err == nil:
		return a
	case errors.As(err, &left):
		a.Addresses = slices.DeleteFunc(a.Addresses, func(a netip.Addr) bool { return slices.Contains(left.LeftOut, a) })
	default:
		a.Addresses = nil
	}
	fmt.Fprintln(os.Stderr, err)
	return a
}

// Proxy is the unprivileged half: it answers questions about the names, once what it answers is pinned.
func Proxy(at, resolver string, names []string) error {
	launcher, asking := os.NewFile(3, "launcher"), sync.Mutex{}
	answer := func(w dns.ResponseWriter, question *dns.Msg) {
		reply := new(dns.Msg).SetReply(question)
		defer func() { w.WriteMsg(reply) }()
		q := question.Question[0]
		if !slices.Contains(names, dns.CanonicalName(q.Name)) || q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
			reply.Rcode = dns.RcodeRefused
			return
		}
		found, err := dns.Exchange(new(dns.Msg).SetQuestion(q.Name, q.Qtype), resolver)
		if err != nil {
			reply.Rcode = dns.RcodeServerFailure
			return
		}
		var a Answer
		for _, r := range found.Answer {
			r.Header().Ttl = min(r.Header().Ttl, longest)
			if to := addressOf(r); to.IsValid() {
				a.Addresses, a.Seconds = append(a.Addresses, to), max(a.Seconds, r.Header().Ttl)
			}
		}
		if len(a.Addresses) > 0 {
			asking.Lock()
			defer asking.Unlock()
			if err = json.NewEncoder(launcher).Encode(a); err == nil {
				a, err = receive(launcher)
			}
		}
		if err != nil {
			reply.Rcode = dns.RcodeServerFailure
			return
		}
		reply.Rcode, reply.Answer = found.Rcode, slices.DeleteFunc(found.Answer, func(r dns.RR) bool {
			to := addressOf(r)
			return to.IsValid() && !slices.Contains(a.Addresses, to)
		})
	}
	return dns.ListenAndServe(at, "udp", dns.HandlerFunc(answer))
}

// addressOf is the address in an A or AAAA record; the zero Addr: there is none.
func addressOf(r dns.RR) netip.Addr {
	var ip net.IP
	switch r := r.(type) {
	case *dns.A:
		ip = r.A
	case *dns.AAAA:
		ip = r.AAAA
	}
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
