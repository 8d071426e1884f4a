// Package pins is the half of a DNS proxy that has privileges. It starts the other half, phase2/names, as a command
// without privileges, and sends it the list of names. It pins the addresses that the command finds, at the ports of the
// list.
//
// The command reads what the guest and the network send. If it is taken over, it can pin addresses that are not
// private, at the ports of an entry. What an earlier entry of Spec.Egress than the last one refuses stays refused.
package pins

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/pinmessage"
	"github.com/guestwire/guestwire/internal/rate"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

// Keeper runs a DNS proxy and pins for it. Set the fields before Run.
type Keeper struct {
	// Names are the names to which the guest may connect, and its own names.
	Names []infra.Name

	// NAT64 is the prefix of the network's NAT64, Options.NAT64 of the Spec: an address in it counts as
	// its IPv4 address. Zero: 64:ff9b::/96 alone does.
	NAT64 netip.Prefix

	// Pin is [phase1.NIC.Pin] of the guest's NIC.
	Pin func(ctx context.Context, p phase1.Pin) error

	// Command makes the proxy's command, at each start anew. If it returns nil, Run ends. The
	// command calls Serve of phase2/names. Its file 3 is the socket of that Proxy; its ExtraFiles
	// come after it. If Stderr is nil, Log gets its lines. Give no terminal to the command: a proxy
	// that was taken over reads what is typed there.
	Command func() *exec.Cmd

	// NetNS and Owner are the command's namespace and user, as launch.Start takes them.
	NetNS *os.File
	Owner infra.Owner

	// Ready is called once in a Run, when the first proxy answers questions: then a launcher can
	// start the guest. The proxy's requests wait until it returns. Nil: nothing is called.
	Ready func()

	// Log gets what is not pinned, and the ends of the command: ten lines a second, after a burst
	// of fifty. It gets as many lines that the command writes. Nil: they are discarded.
	Log *slog.Logger

	limits   limits        // zero: defaults
	started  func(pid int) // nil: nobody asks
	counters struct{ pinned, refused, failed, restarts atomic.Uint64 }
}

// Counters count what a Keeper did, in all its Runs.
type Counters struct {
	// Pinned are addresses. One that is pinned again counts again.
	Pinned uint64

	// Refused are addresses that their entry may not have. A proxy asks for one only if it was
	// taken over.
	Refused uint64

	// Failed are addresses for which the entry had no room, or that Pin left out.
	Failed uint64

	// Restarts are those of the proxy.
	Restarts uint64
}

// Counters returns the counters, also while Run runs.
func (k *Keeper) Counters() Counters {
	c := &k.counters
	return Counters{Pinned: c.pinned.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(), Restarts: c.restarts.Load()}
}

// limits are those of a Run. Tests have others.
type limits struct {
	perSecond, burst int           // requests
	ofName           int           // addresses that are pinned for an entry: two answers of both families, and as many after a new start
	ofSuffix         int           // the same of an entry with "*."
	starts           int           // of a command that ends within soon
	soon             time.Duration // after its start
}

var defaults = limits{perSecond: 100, burst: 200, ofName: 8 * pinmessage.MostAddresses, ofSuffix: 1024, starts: 5, soon: time.Minute}

// Run runs the proxy until ctx is done, kills it, and returns nil. A proxy that ends is started again. After five that
// end within a minute each, Run returns the last error.
//
// A proxy that is not ready within a minute is ended. A request of the proxy has the place of a name and at most 8
// addresses, for 5 seconds to 5 minutes. The pins last 5 seconds longer. At most 100 requests a second are read, after
// a burst of 200. For an entry at most 64 addresses are pinned at a time, or 1024 if it begins with "*.". A malformed
// request ends the proxy.
//
// For another list, end Run, and call it again with other Names. What is pinned stays for its life. Until the next
// proxy is ready, about 10 ms, no socket is open, and the C library reports a failure at once. No question of that time
// is lost if each command gets the same sockets by ExtraFiles, for Packets and Streams of the Proxy.
//
//	*cache.FieldError  an entry of Names is wrong, or Owner is (launch.Start)
//	others             those of launch.Start and of the proxy's end
func (k *Keeper) Run(ctx context.Context) error {
	if err := k.run(ctx); err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	return nil
}

func (k *Keeper) run(ctx context.Context) error {
	if err := infra.ValidateNames(k.Names); err != nil {
		return err
	}
	l := cmp.Or(k.limits, defaults)
	p := &pinner{
		Keeper: k, limits: l, ready: k.Ready, log: rate.NewLog(k.Log), said: rate.NewLog(k.Log), requests: rate.New(l.perSecond, l.burst), pinned: map[int]map[netip.Addr]time.Time{},
	}
	for starts := 1; ; starts++ {
		began := time.Now()
		err := p.runOnce(ctx)
		if time.Since(began) > l.soon {
			starts = 0
		}
		if ctx.Err() != nil {
			return nil
		}
		if starts == l.starts || errors.Is(err, errStart) {
			return err
		}
		k.counters.restarts.Add(1)
		p.log.Warn("the DNS proxy has ended, and is started again", "error", err)
	}
}

// pinner is the state of one Run, for one command after the other.
type pinner struct {
	*Keeper
	limits   limits
	ready    func() // to call; nil: nothing, or it was called
	log      *rate.Log
	said     *rate.Log // by the command, which cannot take the lines of log
	requests *rate.Limit
	pinned   map[int]map[netip.Addr]time.Time // by entry: its addresses, and until when they are pinned
}

// errStart is a command that has not started: the next one would not, either.
var errStart = errors.New("the DNS proxy does not start")

// runOnce starts the command and pins for it, until it ends or the conversation does.
func (p *pinner) runOnce(ctx context.Context) error {
	cmd, ours, err := p.start()
	if err != nil {
		return fmt.Errorf("%w: %w", errStart, err)
	}
	stop := context.AfterFunc(ctx, func() { ours.Close() })
	err = p.converse(ctx, ours)
	stop()
	ours.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select { // one that has failed closes the socket first, and then says why
	case end := <-ended:
		return errors.Join(err, end)
	case <-time.After(lastWords):
	case <-ctx.Done():
	}
	if killed := cmd.Process.Kill(); killed != nil && !errors.Is(killed, os.ErrProcessDone) {
		err = errors.Join(err, killed)
	}
	return errors.Join(err, <-ended)
}

// lastWords is the time that a command has to end by itself when it has closed the socket.
const lastWords = time.Second

// start starts the command and returns its socket.
func (p *pinner) start() (*exec.Cmd, net.Conn, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	file, theirs := os.NewFile(uintptr(pair[0]), "proxy"), os.NewFile(uintptr(pair[1]), "pins")
	defer theirs.Close()
	ours, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return nil, nil, err
	}
	cmd := p.Command()
	if cmd == nil {
		ours.Close()
		return nil, nil, errors.New("there is no command")
	}
	cmd.ExtraFiles = append([]*os.File{theirs}, cmd.ExtraFiles...)
	if cmd.Stderr == nil {
		cmd.Stderr = &words{log: p.said}
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = lastWords // a child of the command may hold its Stderr open
	}
	if err := launch.Start(cmd, p.NetNS, p.Owner); err != nil {
		ours.Close()
		return nil, nil, err
	}
	if p.started != nil {
		p.started(cmd.Process.Pid)
	}
	return cmd, ours, nil
}

// words logs what a command writes, by lines.
type words struct {
	log  *rate.Log
	line []byte // that has no end yet
}

// mostOfLine are the octets of a line that are logged.
const mostOfLine = 1 << 10

func (w *words) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		line, after, ends := bytes.Cut(rest, []byte("\n"))
		w.line = append(w.line, line[:min(len(line), mostOfLine-len(w.line))]...)
		if ends {
			w.log.Info("the DNS proxy says", "line", string(w.line))
			w.line = w.line[:0]
		}
		rest = after
	}
	return len(b), nil
}

// converse sends the list, waits until the proxy is ready, and answers requests.
func (p *pinner) converse(ctx context.Context, proxy net.Conn) error {
	message := make([]byte, pinmessage.MaxSize+1)
	proxy.SetDeadline(time.Now().Add(time.Minute)) // a proxy that is not ready by then ends
	if err := p.sendNames(proxy); err != nil {
		return fmt.Errorf("list of names to the proxy: %w", err)
	}
	n, err := proxy.Read(message)
	if err == nil {
		err = pinmessage.CheckReady(message[:n])
	}
	if err != nil {
		return fmt.Errorf("the proxy is not ready: %w", err)
	}
	proxy.SetDeadline(time.Time{})
	if p.ready != nil {
		p.ready()
		p.ready = nil
	}
	for {
		n, err := proxy.Read(message)
		if err != nil {
			return fmt.Errorf("request of the proxy: %w", err)
		}
		r, err := pinmessage.ParseRequest(message[:n], len(p.Names))
		if err == nil && len(p.Names[r.Name].Addresses) > 0 {
			err = fmt.Errorf("%s has addresses of its own", p.Names[r.Name].Name)
		}
		if err != nil {
			return fmt.Errorf("request of the proxy: %w", err)
		}
		if err := p.requests.Wait(ctx); err != nil {
			return err
		}
		if _, err := proxy.Write(p.pin(ctx, r).Append(nil, r)); err != nil {
			return fmt.Errorf("reply to the proxy: %w", err)
		}
	}
}

func (p *pinner) sendNames(proxy net.Conn) error {
	message := pinmessage.AppendCount(nil, len(p.Names), p.NAT64)
	if _, err := proxy.Write(message); err != nil {
		return err
	}
	for _, n := range p.Names {
		message = pinmessage.Name{Name: n.Name, Private: n.Private, Addresses: n.Addresses}.Append(message[:0])
		if _, err := proxy.Write(message); err != nil {
			return err
		}
	}
	return nil
}

// pin pins what of the request may be pinned.
func (p *pinner) pin(ctx context.Context, r pinmessage.Request) pinmessage.Reply {
	name := p.Names[r.Name]
	allowed := slices.Clone(r.Addresses)
	allowed = slices.DeleteFunc(allowed, func(a netip.Addr) bool { return !pinmessage.Allowed(a, name.Private, p.NAT64) })
	if refused := len(r.Addresses) - len(allowed); refused > 0 {
		p.counters.refused.Add(uint64(refused))
		p.log.Warn("the proxy wants addresses that the name may not have: has it been taken over?", "name", name.Name, "addresses", r.Addresses)
	}
	if len(allowed) == 0 {
		return pinmessage.Reply{}
	}
	wanted := len(allowed)
	reply := p.pinAllowed(ctx, r, allowed)
	p.counters.pinned.Add(uint64(len(reply.Pinned)))
	p.counters.failed.Add(uint64(wanted - len(reply.Pinned)))
	return reply
}

// pinAllowed pins addresses that the name may have.
func (p *pinner) pinAllowed(ctx context.Context, r pinmessage.Request, allowed []netip.Addr) pinmessage.Reply {
	name := p.Names[r.Name]
	life := r.Life + pinmessage.Grace
	end := time.Now().Add(life)
	pinned, room := p.room(r.Name, allowed)
	if !room {
		p.log.Warn("a name has too many addresses: no more are pinned, until some have ended", "name", name.Name, "addresses", len(pinned))
		return pinmessage.Reply{Failed: true}
	}
	err := p.Pin(ctx, phase1.Pin{Addresses: allowed, Ports: name.Ports, Life: life, Name: name.Name})
	var left *phase1.PinError
	switch {
	case errors.As(err, &left):
		allowed = slices.DeleteFunc(allowed, func(a netip.Addr) bool { return slices.Contains(left.LeftOut, a) })
		fallthrough
	case err != nil:
		p.log.Warn("an address is not pinned", "name", name.Name, "error", err)
	}
	if err != nil && left == nil {
		return pinmessage.Reply{Failed: true}
	}
	for _, a := range allowed {
		if end.After(pinned[a]) {
			pinned[a] = end
		}
	}
	return pinmessage.Reply{Pinned: allowed}
}

// room returns the addresses that are pinned for an entry, and reports whether it may have these, too.
func (p *pinner) room(entry int, addresses []netip.Addr) (pinned map[netip.Addr]time.Time, room bool) {
	if pinned = p.pinned[entry]; pinned == nil {
		pinned = map[netip.Addr]time.Time{}
		p.pinned[entry] = pinned
	}
	most := p.limits.ofName
	if p.Names[entry].Name[0] == '*' {
		most = p.limits.ofSuffix
	}
	fits := func() bool {
		count := len(pinned)
		for _, a := range addresses {
			if _, has := pinned[a]; !has {
				count++
			}
		}
		return count <= most
	}
	if fits() {
		return pinned, true
	}
	now := time.Now()
	maps.DeleteFunc(pinned, func(_ netip.Addr, end time.Time) bool { return !end.After(now) })
	return pinned, fits()
}
