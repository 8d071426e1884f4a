package podnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// question is what a station is asked by another one, or by the pod, or the pod by a station.
type question struct {
	protocol protocol
	from, to string // a station's name, or the pod's
	at       netip.AddrPort
}

func (q question) String() string {
	return fmt.Sprintf("%s, %s to %s (%v)", q.protocol, q.from, q.to, q.at)
}

// pod is the pod's name in a question, and processName the name with which a process in the pod answers. A guest
// answers with its own name.
const pod, processName = "pod", "a process"

// stationPort is the port of TCP, UDP and SCTP at which stations answer. The next one is closed, as is that after Port.
const stationPort = 9000

// network is a created network with what the test knows of it.
type network struct {
	*Instance
	mtu   int             // of the NIC
	hosts map[string]host // the stations, and the process in the pod; the key is the name

	mu   sync.Mutex            // guards the rest
	kept map[question]net.Conn // the sockets of questions by standing
}

// isOutside reports whether it is the station that Narrow4 and Narrow6 belong to.
func isOutside(s Station) bool { return s.IPv4 == nstest.Beyond4 || s.IPv6 == nstest.Beyond6 }

// questions returns the questions of the protocols between the pod and the stations.
func (l *network) questions(protocols ...protocol) []question {
	var all []question
	add := func(p protocol, from, to string, a netip.Addr, port uint16) {
		if slices.Contains(protocols, p) {
			all = append(all, question{p, from, to, netip.AddrPortFrom(a, port)})
		}
	}
	if slices.Contains(protocols, tcp) {
		for at, station := range l.Services {
			all = append(all, question{tcp, pod, station, at})
		}
	}
	for _, s := range l.Stations {
		for i, pair := range [][2]netip.Addr{{s.IPv4, l.IPv4}, {s.IPv6, l.IPv6}} {
			station, own := pair[0], pair[1]
			if !station.IsValid() || !own.IsValid() {
				continue
			}
			for _, p := range []protocol{tcp, udp, full, fragments, sctpInit, standing} {
				add(p, pod, s.Name, station, stationPort)
				add(p, s.Name, pod, own, Port)
			}
			add(unreachable, pod, s.Name, station, stationPort+1)
			add(unreachable, s.Name, pod, own, Port+1)
			if l.hosts[s.Name].link(station) != "" {
				add(multicast, pod, s.Name, groups[i], groupPort)
				add(multicast, s.Name, pod, groups[i], groupPort)
			}
			if isOutside(s) && !l.Unrouted {
				add(pathMTU, pod, s.Name, [2]netip.Addr{Narrow4, Narrow6}[i], stationPort)
				if l.mtu < 1500 {
					add(pathMTU, s.Name, pod, own, Port)
				}
			}
		}
		for _, m := range l.Mapped {
			if s.address(m.Addr()).IsValid() {
				add(tcp, s.Name, pod, m.Addr(), m.Port())
			}
		}
	}
	return all
}

// address returns the station's address of the family of like.
func (s Station) address(like netip.Addr) netip.Addr {
	if like.Is4() {
		return s.IPv4
	}
	return s.IPv6
}

// answers are the answers to questions: who answered, and the address it saw, such as "gateway sees 10.22.0.10".
// An empty answer means that none came.
type answers map[question]string

// over returns the answers that came by the protocols.
func (a answers) over(protocols ...protocol) answers {
	b := maps.Clone(a)
	maps.DeleteFunc(b, func(q question, _ string) bool { return !slices.Contains(protocols, q.protocol) })
	return b
}

// ask asks questions at the same time. With known answers it asks the same questions, and each one until the known
// answer comes.
func (l *network) ask(t *testing.T, fromPod host, questions []question, known answers) answers {
	t.Helper()
	var mu sync.Mutex
	got, errs := answers{}, map[question]error{}
	var asking sync.WaitGroup
	turns := make(chan struct{}, 24) // more at once, each of which asks again, leave an emulated machine no time to answer
	for _, q := range questions {
		from := fromPod
		if q.from != pod {
			from = l.hosts[q.from]
		}
		asking.Go(func() {
			if nstest.Emulated {
				turns <- struct{}{}
				defer func() { <-turns }()
			}
			patience := 3 * time.Second
			if nstest.Emulated {
				patience = 10 * time.Second
			}
			switch {
			case known != nil && known[q] == "":
				patience = time.Second
			case known != nil && nstest.Emulated:
				patience = time.Minute
			case known != nil:
				patience = 20 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			answer, err := l.converse(ctx, from, q)
			for ctx.Err() == nil && (known == nil && err != nil || known != nil && answer != known[q]) && !(errors.Is(err, errNotAnswered) && known[q] == "") {
				time.Sleep(50 * time.Millisecond)
				next, failed := l.converse(ctx, from, q)
				if failed != nil && ctx.Err() != nil {
					break // the wait has ended: the answer before says more
				}
				answer, err = next, failed
			}
			mu.Lock()
			defer mu.Unlock()
			got[q], errs[q] = answer, err
		})
	}
	asking.Wait()
	for q := range got {
		if known != nil && got[q] != known[q] {
			t.Errorf("%v: %q, %v; want %q", q, got[q], errs[q], known[q])
		}
	}
	return got
}

// converseTCP connects, reads the answer, and checks that so many octets are echoed.
func converseTCP(ctx context.Context, dial dialer, to netip.AddrPort, size int) (string, error) {
	once, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	c, err := dial(once, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	var line []byte
	for !bytes.HasSuffix(line, []byte("\n")) {
		b := make([]byte, 1)
		if _, err := c.Read(b); err != nil {
			return "", err
		}
		line = append(line, b...)
	}
	answer, err := withoutPort(string(line))
	if err != nil {
		return "", err
	}
	sent := bytes.Repeat([]byte("guestwire "), size/10)
	writing := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		writing <- err
	}()
	back := make([]byte, len(sent))
	_, err = io.ReadFull(c, back)
	if err := errors.Join(err, <-writing); err != nil {
		return "", fmt.Errorf("%s, and does not send back what it got: %w", answer, err)
	}
	if !bytes.Equal(back, sent) {
		return "", fmt.Errorf("%s, and sends other bytes back than it got", answer)
	}
	return answer, nil
}

// withoutPort turns a line "NAME sees ADDRESS:PORT", with or without further words, into the form of answers.
func withoutPort(line string) (string, error) {
	who, saw, _ := strings.Cut(line, " sees ")
	saw, _, _ = strings.Cut(strings.TrimSpace(saw), " ")
	peer, err := netip.ParseAddrPort(saw)
	if err != nil {
		return "", fmt.Errorf("answer %q: %w", line, err)
	}
	return fmt.Sprintf("%s sees %v", who, peer.Addr().Unmap()), nil
}

// allAnswers returns the answers if all stations reach each other and the pod. They are expected of a guest in a
// namespace without addresses, where no process can be asked first.
func (l *network) allAnswers(protocols ...protocol) answers {
	a := answers{}
	for _, q := range l.questions(protocols...) {
		for _, s := range l.Stations {
			switch s.Name {
			case q.to:
				own := l.IPv6
				if q.at.Addr().Is4() {
					own = l.IPv4
				}
				a[q] = s.Name + " sees " + own.String()
			case q.from:
				a[q] = processName + " sees " + s.address(q.at.Addr()).String()
			}
			if q.protocol == unreachable {
				a[q] = portUnreachable
			}
		}
	}
	return a
}

// answeredBy returns the answers that are expected when who answers in the place of the process.
func (a answers) answeredBy(who string) answers {
	b := maps.Clone(a)
	for q, answer := range b {
		if saw, ok := strings.CutPrefix(answer, processName+" sees "); ok {
			b[q] = who + " sees " + saw
		}
	}
	return b
}

// ofGuest returns the answers that are expected when a guest asks and answers in the place of the process, by the
// definition of the binding: behind masquerade, groups of the network stay the namespace's, and so does an exchange
// that the process goes on with. Otherwise the namespace is mute.
func (a answers) ofGuest(binding cache.Kind) answers {
	b := a.answeredBy("guest")
	for q := range a {
		switch {
		case q.protocol == standing && q.from == pod && binding != cache.BindingMasquerade:
			delete(b, q)
		case q.protocol == multicast && q.from == pod && behindRouter(binding):
			b[q] = ""
		case q.protocol == multicast && behindRouter(binding):
			b[q] = a[q]
		}
	}
	return b
}

// behindRouter reports whether the namespace is the guest's next hop, which forwards no multicast.
func behindRouter(binding cache.Kind) bool {
	return binding == cache.BindingRouted || binding == cache.BindingMasquerade
}

// lost returns the mark of a cell whose guest lacks multicast, which the process has: by the binding's definition.
func (a answers) lost(binding cache.Kind, v4 bool) string {
	if behindRouter(binding) {
		for q, answer := range a {
			if q.protocol == multicast && answer != "" && q.at.Addr().Is4() == v4 {
				return `\*` // all except multicast
			}
		}
	}
	return ""
}

// lacks lists the protocols by which a process and the stations do not reach each other, though by TCP they do.
func (l *network) lacks(a answers, v4 bool) string {
	var parts []string
	for _, p := range protocols[1:] {
		var silent, received []string
		for _, q := range l.questions(p) {
			answer, asked := a[q]
			if !asked || q.at.Addr().Is4() != v4 || a[l.byTCP(q)] == "" {
				continue
			}
			way := "to " + q.to
			if q.to == pod {
				way = "from " + q.from
			}
			if answer == "" {
				silent = append(silent, way)
			} else {
				received = append(received, way)
			}
		}
		switch {
		case len(silent) == 0:
		case len(received) == 0:
			parts = append(parts, "no "+string(p))
		case len(received) < len(silent):
			parts = append(parts, fmt.Sprintf("%s only %s", p, mergeWays(received)))
		default:
			parts = append(parts, fmt.Sprintf("no %s %s", p, mergeWays(silent)))
		}
	}
	return strings.Join(parts, ", ")
}

// mergeWays lists ways such as "to peer", and says "with peer" for "to peer" and "from peer".
func mergeWays(ways []string) string {
	var with []string
	for _, w := range ways {
		name, to := strings.CutPrefix(w, "to ")
		if to && slices.Contains(ways, "from "+name) {
			w = "with " + name
		}
		if name, from := strings.CutPrefix(w, "from "); !from || !slices.Contains(ways, "to "+name) {
			with = append(with, w)
		}
	}
	return strings.Join(with, " and ")
}

// byTCP returns the question between the same hosts by TCP.
func (l *network) byTCP(q question) question {
	for _, other := range l.questions(tcp) {
		if _, service := l.Services[other.at]; !service && other.from == q.from && other.to == q.to && other.at.Addr().Is4() == q.at.Addr().Is4() && !slices.Contains(l.Mapped, other.at) {
			return other
		}
	}
	panic(q.String())
}

// summary lists the stations that the pod reaches and that reach the pod, sorted; for each family if they
// differ.
func (l *network) summary(a answers) string {
	sum := func(v4 bool) string {
		var parts []string
		for _, s := range l.Stations {
			to, from := false, false
			known := false
			for q, answer := range a {
				if q.protocol != tcp || q.at.Addr().Is4() != v4 {
					continue
				}
				known = known || q.to == s.Name
				to = to || q.to == s.Name && answer != ""
				from = from || q.from == s.Name && answer != ""
			}
			mapped := slices.ContainsFunc(l.Mapped, func(m netip.AddrPort) bool { return a[question{tcp, s.Name, pod, m}] != "" })
			direct := slices.ContainsFunc([]netip.Addr{l.IPv4, l.IPv6}, func(p netip.Addr) bool {
				return p.IsValid() && p.Is4() == v4 && a[question{tcp, s.Name, pod, netip.AddrPortFrom(p, Port)}] != ""
			})
			switch {
			case !known:
			case to && from && mapped && !direct:
				parts = append(parts, s.Name+" (in by the mapped port)")
			case to && from:
				parts = append(parts, s.Name)
			case to:
				parts = append(parts, s.Name+" (out only)")
			case from:
				parts = append(parts, s.Name+" (in only)")
			default:
				parts = append(parts, "not "+s.Name)
			}
		}
		text := strings.Join(parts, ", ")
		if lacks := l.lacks(a, v4); lacks != "" {
			text += "; " + lacks
		}
		return text
	}
	v4, v6 := sum(true), sum(false)
	switch {
	case v4 == v6 || !l.IPv6.IsValid():
		return v4
	case !l.IPv4.IsValid():
		return v6
	}
	return "IPv4: " + v4 + "; IPv6: " + v6
}
