// Package nstest lays network namespaces for tests, and looks at them as an administrator would:
// with ip(8), bridge(8), tc(8), nft(8), sysctl(8), and by traffic.
package nstest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/sandbox"
)

// Run runs a program and returns what it printed. A failure ends the test.
func Run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Dir is a directory that everybody can enter; t.TempDir makes one for root alone.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guestwire-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Namespace is one that lasts as long as the test.
type Namespace struct {
	Name string
	File *os.File
	t    testing.TB
	gone bool
}

var (
	count   int
	counter sync.Mutex
)

// New makes an empty namespace with its loopback up, and without delays by duplicate address
// detection.
func New(t testing.TB, name string) *Namespace {
	t.Helper()
	counter.Lock()
	count++
	name = fmt.Sprintf("%s%d", name, count)
	counter.Unlock()
	Run(t, "ip", "netns", "add", name)
	n := &Namespace{Name: name, t: t}
	var err error
	n.File, err = os.Open(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.End)
	n.Exec("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0")
	n.IP("link set lo up")
	return n
}

// End ends the namespace before the test does.
func (n *Namespace) End() {
	if n.gone {
		return
	}
	n.gone = true
	n.File.Close()
	Run(n.t, "ip", "netns", "del", n.Name)
}

// Path is where the namespace is mounted.
func (n *Namespace) Path() string { return filepath.Join("/run/netns", n.Name) }

// Exec runs a program in the namespace and returns what it printed. A failure ends the test.
func (n *Namespace) Exec(args ...string) string {
	n.t.Helper()
	return Run(n.t, "ip", append([]string{"netns", "exec", n.Name}, args...)...)
}

// IP runs ip(8) in the namespace, with a line of words.
func (n *Namespace) IP(line string) string {
	n.t.Helper()
	return Run(n.t, "ip", append([]string{"-n", n.Name}, strings.Fields(line)...)...)
}

// Settle waits until the kernel has taken notice that the link has a carrier, has given it its
// link-local address, and uses all of its addresses.
func (n *Namespace) Settle(link string) {
	n.t.Helper()
	Eventually(n.t, func() error {
		out := n.IP("-br addr show dev " + link)
		if !operational.MatchString(out) || !strings.Contains(out, "fe80:") {
			return errors.New(out)
		}
		if out := n.IP("addr show dev " + link + " tentative"); out != "" {
			return errors.New(out)
		}
		return nil
	})
}

// operational are links that say so, and those that never say anything (Linux, Documentation/networking/operstates.rst).
var operational = regexp.MustCompile(` (UP|UNKNOWN) `)

// Dump is what an administrator sees of the namespace: everything that a wiring could change.
func (n *Namespace) Dump() string {
	n.t.Helper()
	return carriers.ReplaceAllString(timers.ReplaceAllString(n.Exec("bash", "-c", dump), ""), "")
}

// dump prints everything that a wiring could change. Peers' namespaces are printed by number, or
// ip(8) would look for their names among those that other tests make and delete meanwhile.
const dump = `set -e
mount -t tmpfs none /run/netns
for command in "ip -d link" "ip -d addr" "ip -d route show table all" "ip -6 -d route show table all" \
	"ip rule" "ip -6 rule" "bridge -d link" "tc qdisc" "nft -s -t list ruleset" \
	"sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv6.conf.default.disable_ipv6" \
	"sysctl net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range"; do
	echo "# $command"
	$command
done
for command in "ip neigh show nud permanent" "bridge fdb show"; do # in the order of a table of hashes
	echo "# $command"
	$command | sort
done
for link in $(ls /sys/class/net); do
	echo "# tc filter show dev $link ingress"
	tc filter show dev $link ingress
done
cd /proc/sys/net
grep "" ipv4/conf/*/{forwarding,arp_ignore,rp_filter,route_localnet} ipv6/conf/*/{forwarding,accept_ra,addr_gen_mode,disable_ipv6}`

// timers of bridges run all the time, and actions of tc have numbers that the kernel counts.
var timers = regexp.MustCompile(`_timer +[0-9.]+|index [0-9]+ ref [0-9]+ bind [0-9]+`)

// carriers are noticed up to a second late, and so is what follows from them.
var carriers = regexp.MustCompile(`NO-CARRIER,|,LOWER_UP| state [A-Z]+| state (disabled|forwarding|learning|listening)| linkdown`)

// Listen serves TCP in the namespace until the test ends: each connection gets a line, who serves it
// and who calls, and then its own bytes back.
func (n *Namespace) Listen(name, address string) {
	n.t.Helper()
	var l net.Listener
	Eventually(n.t, func() error { // an IPv6 address takes a moment, even without detection of duplicates
		return netns.Do(n.File, func() (err error) {
			l, err = net.Listen("tcp", address)
			return err
		})
	})
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(10 * time.Second))
				fmt.Fprintf(c, "%s sees %s\n", name, c.RemoteAddr())
				io.Copy(c, c)
			})
		}
	})
	n.t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
}

// Ask connects from the namespace and returns the line of the station that answers.
func (n *Namespace) Ask(address string) (string, error) {
	var c net.Conn
	err := netns.Do(n.File, func() (err error) {
		c, err = net.DialTimeout("tcp", address, 3*time.Second)
		return err
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	return Answer(c)
}

// Answer reads the line of the station at the other end.
func Answer(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// Output is what a process has printed so far.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Process is a program that runs until the test ends, or the tests' process.
type Process struct {
	*exec.Cmd
	Output Output

	ended chan struct{}
	err   error // once it has ended

	stopped bool
}

// Start runs a program in the namespace as a user without capabilities until the test ends.
func (n *Namespace) Start(uid int, args ...string) *Process {
	n.t.Helper()
	groups := "--clear-groups"
	if sandbox.OneUser() { // who has no groups to give up either
		groups = "--keep-groups"
	}
	p := &Process{Cmd: exec.Command("nsenter", append([]string{
		"--net=" + n.Path(), "setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(uid), groups,
		"--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", "--pdeathsig", "KILL", "--",
	}, args...)...)}
	p.Stdout, p.Stderr = &p.Output, &p.Output
	p.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		// The signal comes at the end of the thread, so this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.Cmd.Start()
		started <- err
		if err == nil {
			p.err = p.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { p.Stop(n.t) })
	return p
}

// Stop ends the process by SIGTERM; it has to succeed. Called again it does nothing.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	if p.stopped {
		return
	}
	p.stopped = true
	if err := p.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	<-p.ended
	if p.err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(p.Args, " "), p.err, p.Output.String())
	}
}

// Await waits until the process has ended by itself; it has to succeed.
func (p *Process) Await(t testing.TB) {
	t.Helper()
	p.stopped = true
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.Process.Kill()
		<-p.ended
		t.Errorf("%s: did not end by itself", strings.Join(p.Args, " "))
	}
	if p.err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(p.Args, " "), p.err, p.Output.String())
	}
}

// Eventually calls f until it returns nil, for a minute: a busy machine is slow.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// SetTypes returns nft's list with the types of sets by name. For a set that nft(8) itself has made, the list says from
// what part of a packet the type comes, which is in a comment of nft's own.
func SetTypes(list string) string {
	return typeOf.ReplaceAllStringFunc(list, func(line string) string {
		if strings.HasPrefix(line, "typeof ip ") || strings.HasPrefix(line, "typeof rt ip ") || line == "typeof @nh,112,32" {
			return "type ipv4_addr"
		}
		return "type ipv6_addr"
	})
}

var typeOf = regexp.MustCompile(`typeof .*`)
