package pins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/pinmessage"
	"github.com/guestwire/guestwire/internal/rate"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// proxyOf has, in the environment of this program, which proxy it is.
const proxyOf = "GUESTWIRE_TEST_NAMES"

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(proxyOf)); len(words) > 0 {
		if err := proxies[words[0]](words[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nstest.Main(m)
}

// proxies are those of the tests.
var proxies = map[string]func(words []string) error{
	"names":  serveNames,
	"record": serveRecord,
	"sends":  send,
	"ends":   func([]string) error { return nil },
	"leaves": func([]string) error {
		unix.CloseOnExec(3)
		child := exec.Command("sleep", "60")
		child.Stderr = os.Stderr
		return child.Start()
	},
	"writes": func([]string) error {
		for range 10000 {
			fmt.Fprintln(os.Stderr, "\x1b[2Jlevel=ERROR")
		}
		fmt.Fprint(os.Stderr, strings.Repeat("x", 1<<20))
		return nil
	},
	"waits": func([]string) error { time.Sleep(time.Hour); return nil },
}

// send sends that it is ready, unless the first word is "early", and then what the words say, in hexadecimal. It reads
// the replies: to each one, or, after "flood", to none.
func send(words []string) error {
	c, err := net.FileConn(os.NewFile(3, "pins"))
	if err != nil {
		return err
	}
	buffer := make([]byte, 4096)
	for range 1 + len(list) { // the list
		if _, err := c.Read(buffer); err != nil {
			return err
		}
	}
	if words[0] == "early" {
		words = words[1:]
	} else if _, err := c.Write(pinmessage.AppendReady(nil)); err != nil {
		return err
	}
	for _, word := range words {
		var message []byte
		if word == "flood" {
			message = request(0, "198.51.100.9")
			for {
				if _, err := c.Write(message); err != nil {
					return err
				}
			}
		}
		if word != "empty" {
			fmt.Sscanf(word, "%x", &message)
		}
		if _, err := c.Write(message); err != nil {
			return err
		}
		n, err := c.Read(buffer)
		if err != nil {
			return err
		}
		fmt.Printf("%x\n", buffer[:n])
	}
	fmt.Println("end")
	time.Sleep(time.Hour) // until it is killed
	return nil
}

func request(name int, addresses ...string) []byte {
	r := pinmessage.Request{Name: name, Life: time.Minute}
	for _, text := range addresses {
		r.Addresses = append(r.Addresses, netip.MustParseAddr(text))
	}
	return r.Append(nil)
}

// list are the names of the tests.
var list = namesOf("good.example 443 53/udp", "*.wild.example 443", "db.example 5432 private", "host.internal = 10.0.2.1")

func namesOf(texts ...string) (list []infra.Name) {
	for _, text := range texts {
		var n infra.Name
		if err := n.UnmarshalText([]byte(text)); err != nil {
			panic(err)
		}
		list = append(list, n)
	}
	return list
}

// kept is a Keeper whose pins are noted.
type kept struct {
	Keeper
	mu     sync.Mutex
	pins   []string
	starts int
	proxy  []string // the words
	out    lines
}

// lines are what the command and the log write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newKept(t *testing.T, proxy ...string) *kept {
	nstest.Need(t)
	k := &kept{proxy: proxy}
	k.Names, k.Owner, k.limits = list, nstest.Owner(), defaults
	k.Log = slog.New(slog.NewTextHandler(&k.out, nil))
	k.Pin = func(_ context.Context, p phase1.Pin) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.pins = append(k.pins, fmt.Sprint(p.Addresses, p.Ports, p.Life))
		return nil
	}
	k.Command = func() *exec.Cmd {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.starts++
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), proxyOf+"="+strings.Join(k.proxy, " "))
		cmd.Stdout, cmd.Stderr = &k.out, &k.out
		return cmd
	}
	return k
}

func (k *kept) pinned() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.pins)
}

// TestRequests: a request is pinned at the ports of the entry, for a life that is bounded. A reply says what is pinned.
func TestRequests(t *testing.T) {
	hex := func(b []byte) string { return fmt.Sprintf("%x", b) }
	k := newKept(t, "sends", hex(request(0, "198.51.100.9", "2001:db8::9")), hex(request(1, "198.51.100.9", "10.0.0.1", "198.51.100.10")), hex(request(2, "10.0.0.1", "169.254.169.254")), hex(request(1, "10.0.0.1", "127.0.0.1")))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	nstest.Eventually(t, func() error {
		if !strings.Contains(k.out.String(), "end\n") {
			return errors.New("the proxy has not ended")
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want := []string{
		"[198.51.100.9 2001:db8::9] [443/tcp 53/udp] 1m5s",
		"[198.51.100.9 198.51.100.10] [443/tcp] 1m5s",
		"[10.0.0.1] [5432/tcp] 1m5s",
	}
	if have := k.pinned(); !slices.Equal(have, want) {
		t.Errorf("pinned are\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	for _, reply := range []string{"0003\n", "0005\n", "0001\n", "0000\n"} {
		if !strings.Contains(k.out.String(), reply) {
			t.Errorf("the proxy did not get %q:\n%s", reply, k.out.String())
		}
	}
	if have, want := k.Counters(), (Counters{Pinned: 5, Refused: 4}); have != want {
		t.Errorf("%+v, want %+v", have, want)
	}
	if n := strings.Count(k.out.String(), "has it been taken over?"); n != 3 || k.starts != 1 {
		t.Errorf("%d warnings, %d starts:\n%s", n, k.starts, k.out.String())
	}
}

// TestHostileProxy: a proxy that sends what is no request is ended, and pins nothing. One that ends is started again,
// and not for ever. One that reads no reply makes no more requests than the rate.
func TestHostileProxy(t *testing.T) {
	nobody, long, lives := request(9, "198.51.100.9"), append(request(0, "198.51.100.9"), make([]byte, 1000)...), request(0, "198.51.100.9")
	lives[4], lives[5] = 0xff, 0xff
	for name, words := range map[string][]string{
		"empty": {"sends", "empty"}, "short": {"sends", "00"}, "long": {"sends", fmt.Sprintf("%x", long)}, "another name": {"sends", fmt.Sprintf("%x", nobody)},
		"a name of one's own": {"sends", fmt.Sprintf("%x", request(3, "198.51.100.9"))}, "a long life": {"sends", fmt.Sprintf("%x", lives)}, "ends": {"ends"},
		"a request before ready": {"sends", "early", fmt.Sprintf("%x", request(0, "198.51.100.9"))}, "ready twice": {"sends", fmt.Sprintf("%x", pinmessage.AppendReady(nil))},
	} {
		k := newKept(t, words...)
		ready := 0
		k.Ready = func() { ready++ }
		if err := k.Run(t.Context()); err == nil || ready > 1 || strings.Contains(name, "before") && ready > 0 || k.starts != k.limits.starts {
			t.Errorf("%s: %v after %d starts", name, err, k.starts)
		}
		if have, want := k.Counters(), (Counters{Restarts: uint64(k.starts - 1)}); have != want {
			t.Errorf("%s: %+v, want %+v", name, have, want)
		}
		if len(k.pinned()) > 0 {
			t.Errorf("%s pins %q", name, k.pinned())
		}
	}
	for _, proxy := range []string{"waits", "sends flood"} {
		k := newKept(t, strings.Fields(proxy)...)
		k.limits.perSecond, k.limits.burst = 5, 5
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		began := time.Now()
		go func() { ended <- k.Run(ctx) }()
		nstest.Eventually(t, func() error {
			if k.mu.Lock(); k.starts == 0 {
				k.mu.Unlock()
				return errors.New("it has not started")
			}
			k.mu.Unlock()
			if strings.Contains(proxy, "flood") && len(k.pinned()) < 8 {
				return fmt.Errorf("%d requests", len(k.pinned()))
			}
			return nil
		})
		cancel()
		if err := <-ended; err != nil || k.starts != 1 {
			t.Errorf("%s: %v after %d starts", proxy, err, k.starts)
		}
		if n, most := len(k.pinned()), 6+int(5*time.Since(began).Seconds()); n > most {
			t.Errorf("%s: %d requests, want at most %d", proxy, n, most)
		}
	}
	late := newKept(t, "ends")
	late.limits.soon = 0 // each has lived for long
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- late.Run(ctx) }()
	nstest.Eventually(t, func() error {
		if late.mu.Lock(); late.starts <= 2*late.limits.starts {
			late.mu.Unlock()
			return errors.New("not often enough")
		}
		late.mu.Unlock()
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLastWords: a proxy that fails closes the socket and then says why. It is not killed in between.
func TestLastWords(t *testing.T) {
	k := newKept(t, "ends")
	k.limits.starts = 1
	var said bytes.Buffer
	k.Command = func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", "exec 3>&-; sleep 0.1; echo the port is in use >&2; exit 3")
		cmd.Stderr = &said
		return cmd
	}
	if err := k.Run(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "exit status 3") || said.String() != "the port is in use\n" {
		t.Errorf("%v, and it says %q", err, said.String())
	}
}

// TestRunRefuses: a list that is wrong, a program that is not there, an owner who is nobody.
func TestRunRefuses(t *testing.T) {
	var field *cache.FieldError
	k := newKept(t, "waits")
	k.Names = namesOf("good.example 443", "good.example 80")
	if err := k.Run(t.Context()); !errors.As(err, &field) || k.starts != 0 {
		t.Error(err)
	}
	k = newKept(t, "waits")
	k.Command = func() *exec.Cmd { return exec.Command("/nonexistent") }
	if err := k.Run(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	k = newKept(t, "waits")
	k.Command = func() *exec.Cmd { return nil }
	if err := k.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no command") {
		t.Error(err)
	}
	k = newKept(t, "waits")
	k.Owner = infra.Owner{}
	if err := k.Run(t.Context()); !errors.As(err, &field) {
		t.Error(err)
	}
}

// TestRoom: an entry has so many addresses pinned at a time, whatever the proxy asks for, and whatever Pin leaves out.
func TestRoom(t *testing.T) {
	calls := 0
	fails := error(nil)
	p := &pinner{Keeper: &Keeper{Names: list}, limits: defaults, log: rate.NewLog(nil), pinned: map[int]map[netip.Addr]time.Time{}}
	p.Pin = func(context.Context, phase1.Pin) error { calls++; return fails }
	next := netip.MustParseAddr("198.18.0.0")
	fill := func(name int) (n int) {
		for range 2000 {
			next = next.Next()
			if len(p.pin(t.Context(), pinmessage.Request{Name: name, Addresses: []netip.Addr{next}, Life: time.Minute}).Pinned) == 1 {
				n++
			}
		}
		return n
	}
	if n := fill(0); n != 64 {
		t.Errorf("a name has %d addresses", n)
	}
	if n := fill(1); n != 1024 {
		t.Errorf("an entry with *. has %d addresses", n)
	}
	if calls != 64+1024 {
		t.Errorf("%d calls", calls)
	}
	again := pinmessage.Request{Name: 0, Addresses: []netip.Addr{netip.MustParseAddr("198.18.0.1")}, Life: time.Minute}
	if r := p.pin(t.Context(), again); r.Failed || len(r.Pinned) != 1 {
		t.Errorf("an address that is pinned already: %+v", r)
	}
	for a := range p.pinned[0] { // their life ends
		p.pinned[0][a] = time.Now()
	}
	if n := fill(0); n != 64 {
		t.Errorf("a name has %d addresses later", n)
	}
	fails = errors.New("no room")
	if r := p.pin(t.Context(), again); !r.Failed || len(r.Pinned) > 0 {
		t.Errorf("Pin fails: %+v", r)
	}
	if have, want := p.Counters(), (Counters{Pinned: 64 + 1024 + 1 + 64, Failed: (2000 - 64) + (2000 - 1024) + (2000 - 64) + 1}); have != want {
		t.Errorf("%+v, want %+v", have, want)
	}
	both := pinmessage.Request{Name: 2, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")}, Life: time.Minute}
	failed := p.Counters().Failed
	fails = fmt.Errorf("eth0: %w", &phase1.PinError{LeftOut: both.Addresses[:1]})
	if r := p.pin(t.Context(), both); r.Failed || !slices.Equal(r.Pinned, both.Addresses[1:]) || len(p.pinned[2]) != 1 || p.Counters().Failed != failed+1 {
		t.Errorf("Pin leaves one out: %+v", r)
	}
}

// TestTranslated: an address of the site's NAT64 is pinned as its IPv4 address would be, whatever the proxy asks for.
func TestTranslated(t *testing.T) {
	site := netip.MustParsePrefix("fd64::/96")
	p := &pinner{Keeper: &Keeper{Names: list[:1], NAT64: site}, limits: defaults, log: rate.NewLog(nil), pinned: map[int]map[netip.Addr]time.Time{}}
	p.Pin = func(context.Context, phase1.Pin) error { return nil }
	var asked []netip.Addr
	for _, text := range []string{"fd64::198.51.100.9", "fd64::10.1.2.3", "fd64::169.254.169.254", "fd65::198.51.100.9"} {
		asked = append(asked, netip.MustParseAddr(text))
	}
	if r := p.pin(t.Context(), pinmessage.Request{Addresses: asked, Life: time.Minute}); !slices.Equal(r.Pinned, asked[:1]) || p.Counters().Refused != 3 {
		t.Errorf("%+v, %+v", r, p.Counters())
	}
}

// TestMost: what infra allows fits into messages and calls.
func TestMost(t *testing.T) {
	most := make([]infra.Name, pinmessage.MostNames)
	for i := range most {
		most[i] = infra.Name{Name: fmt.Sprintf("n%d.example", i), Ports: []infra.Ports{{First: 1, Last: 128}}}
	}
	if err := infra.ValidateNames(most); err != nil {
		t.Error(err)
	}
	own := infra.Name{Name: strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "." + strings.Repeat("d", 61)}
	for i := range pinmessage.MostAddresses {
		own.Addresses = append(own.Addresses, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}))
	}
	message := pinmessage.Name{Name: own.Name, Addresses: own.Addresses}.Append(nil)
	if err := infra.ValidateNames([]infra.Name{own}); err != nil || len(message) > pinmessage.MaxSize {
		t.Error(err, len(message))
	}
}

// TestHeldOutput: Run does not wait for a child of the command that has its output open.
func TestHeldOutput(t *testing.T) {
	k := newKept(t, "leaves")
	k.limits.starts = 1
	ended := make(chan error, 1)
	go func() { ended <- k.Run(t.Context()) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("Run returns nil")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Run waits for the command's child")
	}
}

// TestWords: what a command writes takes some lines of the log, none of them of the command's making, and hides none
// of the Keeper's own.
func TestWords(t *testing.T) {
	k := newKept(t, "writes")
	k.limits.starts = 2
	command := k.Command
	k.Command = func() *exec.Cmd {
		cmd := command()
		cmd.Stdout, cmd.Stderr = nil, nil
		return cmd
	}
	if err := k.Run(t.Context()); err == nil {
		t.Error("Run returns nil")
	}
	text := k.out.String()
	said, restarts := strings.Count(text, "the DNS proxy says"), strings.Count(text, "the DNS proxy has ended")
	if said == 0 || said > 300 || restarts != 1 || strings.Contains(text, "\x1b") {
		t.Errorf("%d lines of the command, %d of its end:\n%.2000s", said, restarts, text)
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "time=") || len(line) > 2000 {
			t.Errorf("the line %.200q", line)
		}
	}
}
