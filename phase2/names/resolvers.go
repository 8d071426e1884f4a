package names

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/rate"
	"github.com/guestwire/guestwire/internal/resolvconf"
	"github.com/guestwire/guestwire/internal/syntax"
)

const (
	lookEvery = time.Second // at the file, if somebody asks

	mostResolvers = 3 // MAXNS of resolv.conf(5)
	rounds        = 3 // in which each of them is asked
	mostForeign   = 20
)

// resolvers are the resolvers that are asked.
type resolvers struct {
	path    string // of the resolv.conf; empty: the list is fixed
	own     []netip.AddrPort
	log     *rate.Log
	attempt time.Duration // until the next resolver is asked
	all     time.Duration // until the guest gets an error

	mu     sync.Mutex
	list   []netip.AddrPort
	search []string    // that the guest has; nil: those of the file
	found  []string    // in the file
	looked time.Time   // at the file
	seen   os.FileInfo // what it was then
}

// newResolvers returns the resolvers, without those that are the proxy's own sockets.
func (p *Proxy) newResolvers(own []net.PacketConn) (*resolvers, error) {
	l := p.limits.full()
	r := &resolvers{list: p.Resolvers, search: domains(p.Search), log: rate.NewLog(p.Log), attempt: l.attempt, all: l.all}
	for _, c := range own {
		if at, ok := c.LocalAddr().(*net.UDPAddr); ok {
			r.own = append(r.own, unmapped(at.AddrPort()))
		}
	}
	if len(p.Resolvers) > 0 {
		return r, nil
	}
	if r.path = p.ResolvConf; r.path == "" {
		r.path = resolvconf.Default
	}
	if err := r.read(); err != nil && (p.ResolvConf != "" || !errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	return r, nil
}

// current returns the resolvers to ask now, and the guest's search domains.
func (r *resolvers) current() (list []netip.AddrPort, search []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path != "" && time.Since(r.looked) >= lookEvery {
		if err := r.read(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("resolv.conf cannot be read; the old resolvers stay in use", "error", err)
		}
	}
	if r.search != nil {
		return r.list, r.search
	}
	return r.list, r.found
}

// searched reports whether the name ends in a search domain: the guest's resolver has made it.
func (r *resolvers) searched(name string) bool {
	_, search := r.current()
	return slices.ContainsFunc(search, func(domain string) bool {
		rest, ends := strings.CutSuffix(name, domain)
		return ends && strings.HasSuffix(rest, ".")
	})
}

// domains are search domains as question has names. Nil stays nil. The root is none: all names end in it.
func domains(search []string) []string {
	if search == nil {
		return nil
	}
	list := []string{}
	for _, given := range search {
		if domain, err := syntax.SearchDomain(given); err == nil && domain != "" {
			list = append(list, strings.ToLower(domain))
		}
	}
	return list
}

// read reads the file, if it is not what it was: the path may lead to another one. glibc looks for changes so, too.
func (r *resolvers) read() error {
	r.looked = time.Now()
	info, err := os.Stat(r.path)
	if err != nil {
		return fmt.Errorf("DNS configuration: %w", err)
	}
	if r.seen != nil && os.SameFile(info, r.seen) && info.ModTime().Equal(r.seen.ModTime()) && info.Size() == r.seen.Size() {
		return nil
	}
	text, err := resolvconf.Read(r.path)
	if err != nil || len(text) == 0 && r.seen != nil { // a program may be writing it
		return err
	}
	r.seen = info
	dns, bad := resolvconf.Parse(text)
	r.found = domains(dns.Search)
	for _, word := range bad {
		r.log.Warn("a resolver is left out: not an IP address", "path", r.path, "nameserver", word)
	}
	var list []netip.AddrPort
	for _, a := range dns.Servers {
		to := netip.AddrPortFrom(a.Unmap(), 53)
		if slices.Contains(r.own, to) {
			r.log.Warn("a resolver is left out: it is this proxy", "path", r.path, "nameserver", a)
			continue
		}
		list = append(list, to)
	}
	if r.list = list[:min(len(list), mostResolvers)]; len(r.list) == 0 {
		r.log.Warn("the resolv.conf names no resolver, so all questions fail: add a line nameserver, or name another file", "path", r.path)
	}
	return nil
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// ask asks one resolver after the other, until one answers that the name has the records, has none, or does not exist.
func (r *resolvers) ask(ctx context.Context, q question) (response, error) {
	list, _ := r.current()
	if len(list) == 0 {
		return response{}, errors.New("there is no resolver")
	}
	ctx, cancel := context.WithTimeout(ctx, r.all)
	defer cancel()
	last := ctx.Err()
	for range rounds {
		for _, to := range list {
			found, err := r.exchange(ctx, to, q)
			if err == nil && found.code != dnsmessage.RCodeSuccess && found.code != dnsmessage.RCodeNameError {
				err = errors.New(found.code.String())
			}
			if err == nil {
				return found, nil
			}
			if last = fmt.Errorf("%v: %w", to, err); ctx.Err() != nil {
				return response{}, last
			}
		}
	}
	return response{}, last
}

// exchange asks a resolver, by UDP, and by TCP if the reply is too long or may be forged.
func (r *resolvers) exchange(ctx context.Context, to netip.AddrPort, q question) (response, error) {
	name, err := dnsmessage.NewName(q.name + ".")
	if err != nil {
		return response{}, err
	}
	asked := dnsmessage.Question{Name: mixed(name), Type: q.kind, Class: dnsmessage.ClassINET}
	id := uint16(rand.Uint32()) // of ChaCha8
	once, cancel := context.WithTimeout(ctx, r.attempt)
	defer cancel()
	found, is, err := exchangeUDP(once, to, id, asked)
	if err != nil || is == final {
		return found, err
	}
	again, cancel := context.WithTimeout(ctx, r.attempt)
	defer cancel()
	return exchangeTCP(again, to, id, asked)
}

// mixed is the name with letters in upper and lower case by chance. A resolver repeats it, and who forges its reply has
// to guess it (draft-vixie-dnsext-dns0x20).
func mixed(name dnsmessage.Name) dnsmessage.Name {
	var bits uint64
	for i, c := range name.Data[:name.Length] {
		if i%64 == 0 {
			bits = rand.Uint64()
		}
		if 'a' <= c && c <= 'z' && bits>>(i%64)&1 == 1 {
			name.Data[i] = c - 'a' + 'A'
		}
	}
	return name
}

// pack is the message that asks. It takes nothing over from the guest's, such as a network of a client (RFC 7871).
func pack(id uint16, asked dnsmessage.Question) ([]byte, error) {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true}, Questions: []dnsmessage.Question{asked}}
	opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
	if err := opt.Header.SetEDNS0(largest, 0, false); err != nil {
		return nil, err
	}
	m.Additionals = []dnsmessage.Resource{opt}
	return m.Pack()
}

// exchangeUDP asks from a port that the kernel chooses by chance. The socket receives from the resolver alone. After
// several messages that are no reply, somebody guesses: then it returns foreign, without an error.
func exchangeUDP(ctx context.Context, to netip.AddrPort, id uint16, asked dnsmessage.Question) (response, verdict, error) {
	message, err := pack(id, asked)
	if err != nil {
		return response{}, foreign, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", to.String())
	if err != nil {
		return response{}, foreign, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
	if _, err := c.Write(message); err != nil {
		return response{}, foreign, err
	}
	buffer := make([]byte, 4096)
	for range mostForeign {
		n, err := c.Read(buffer)
		if err != nil {
			return response{}, foreign, err
		}
		if found, is := parseResponse(buffer[:n], id, asked); is != foreign {
			return found, is, nil
		}
	}
	return response{}, foreign, nil
}

// exchangeTCP asks by a connection, whose replies nobody can forge who does not see it.
func exchangeTCP(ctx context.Context, to netip.AddrPort, id uint16, asked dnsmessage.Question) (response, error) {
	message, err := pack(id, asked)
	if err != nil {
		return response{}, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return response{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)); err != nil {
		return response{}, err
	}
	reply, err := readStream(c, 1<<16-1)
	if err != nil {
		return response{}, err
	}
	found, is := parseResponse(reply, id, asked)
	if is != final && is != otherCase {
		return response{}, errors.New("the reply by TCP is none to the question, or is incomplete")
	}
	return found, nil
}

// readStream reads a message of TCP (RFC 1035 section 4.2.2) that has no more than most octets.
func readStream(from io.Reader, most int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > most {
		return nil, fmt.Errorf("a message of %d octets: %w", n, syscall.EMSGSIZE)
	}
	message := make([]byte, n)
	_, err := io.ReadFull(from, message)
	return message, err
}
