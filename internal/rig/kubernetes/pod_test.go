package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// pod is a running pod.
type pod struct {
	*nstest.Namespace // its network
	namespace, name   string
	uid               string
	sandbox           string // the ID of the newest sandbox
	address           netip.Addr
}

// pod waits until a pod is ready, and returns it.
func (c *Cluster) pod(t testing.TB, namespace, name string) *pod {
	t.Helper()
	c.wait(t, namespace, "condition=Ready", "pod/"+name)
	words := strings.Fields(c.Kubectl(t, "", "get", "--namespace="+namespace, "pod", name, "--output=jsonpath={.metadata.uid} {.status.podIP}"))
	if len(words) != 2 {
		t.Fatalf("UID and address of pod %s: %q", name, words)
	}
	p := &pod{namespace: namespace, name: name, uid: words[0], address: netip.MustParseAddr(words[1])}
	var list struct {
		Items []struct{ ID string }
	}
	filter := map[string]any{"label_selector": map[string]string{"io.kubernetes.pod.uid": p.uid}, "state": map[string]any{"state": 0}}
	if err := c.Engine.CRI("ListPodSandbox", map[string]any{"filter": filter}, &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("sandbox of pod %s: %v, %v", name, list.Items, err)
	}
	p.sandbox = list.Items[0].ID
	var status struct{ Info map[string]string }
	var info struct{ Pid int }
	err := c.Engine.CRI("PodSandboxStatus", map[string]any{"pod_sandbox_id": p.sandbox, "verbose": true}, &status)
	if err == nil {
		err = json.Unmarshal([]byte(status.Info["info"]), &info)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Namespace = nstest.Adopt(t, name, c.Path(fmt.Sprintf("/proc/%d/ns/net", info.Pid)))
	return p
}

// wait waits for objects as kubectl wait does.
func (c *Cluster) wait(t testing.TB, namespace, condition string, objects ...string) {
	t.Helper()
	_, err := c.TryKubectl("", append([]string{"wait", "--namespace=" + namespace, "--for=" + condition, "--timeout=" + patience.String()}, objects...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, c.said(namespace))
	}
}

// eventually calls f until it returns nil, as long as a wait lasts.
func (c *Cluster) eventually(t testing.TB, namespace string, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v\n%s", err, c.said(namespace))
		}
	}
}

// said is what the pods of a namespace and guestwire-node say, for a wait that has timed out.
func (c *Cluster) said(namespace string) string {
	var text strings.Builder
	show := func(args ...string) string {
		out, err := c.TryKubectl("", args...)
		fmt.Fprintf(&text, "kubectl %s:\n%s\n", strings.Join(args, " "), out)
		if err != nil {
			fmt.Fprintln(&text, err)
		}
		return out
	}
	show("get", "node", NodeName, "--output=jsonpath={.status.conditions}{.status.allocatable}")
	show("describe", "pods", "--namespace="+namespace)
	show("get", "events", "--namespace="+namespace, "--sort-by=.lastTimestamp")
	for _, name := range strings.Fields(show("get", "pods", "--namespace="+namespace, "--output=jsonpath={.items[*].metadata.name}")) {
		show("logs", "--namespace="+namespace, "--all-containers", "--prefix", name)
		show("logs", "--namespace="+namespace, "--all-containers", "--prefix", "--previous", name)
	}
	show("logs", "--namespace="+system, daemonSet)
	return text.String()
}

// namespace makes a namespace with labels, NAME=VALUE, and waits until pods can be made in it. Its pods are deleted at
// the end.
func (c *Cluster) namespace(t testing.TB, name string, labels ...string) {
	t.Helper()
	c.Kubectl(t, "", "create", "namespace", name)
	t.Cleanup(func() {
		c.Kubectl(t, "", "delete", "--namespace="+name, "deployments,daemonsets,pods", "--all", "--timeout="+patience.String())
		c.Kubectl(t, "", "delete", "namespace", name, "--wait=false")
	})
	if len(labels) > 0 {
		c.Kubectl(t, "", append([]string{"label", "namespace", name}, labels...)...)
	}
	c.wait(t, name, "create", "serviceaccount/default")
}

// event waits until the events of a pod have one whose message has all of the words, and returns the message.
func (c *Cluster) event(t testing.TB, namespace, pod string, words ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := c.kubectl(ctx, "", "get", "events", "--namespace="+namespace, "--watch", "--field-selector=involvedObject.name="+pod, "--output=jsonpath={.message}{\"\\x00\"}")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	var seen []string
	for in := bufio.NewReader(out); ; {
		message, err := in.ReadString(0)
		if err != nil {
			t.Fatalf("no event of pod %s has %q, but: %q", pod, words, seen)
		}
		message = strings.TrimSuffix(message, "\x00")
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(message, word) }) {
			return message
		}
		seen = append(seen, message)
	}
}

// record reads the record of a pod's NIC.
func (c *Cluster) record(t testing.TB, p *pod, nic string) cache.Record {
	t.Helper()
	return nstest.Record(t, c.Path("/run/guestwire/"+p.sandbox), nic)
}

// echoPort is the TCP port at which guests answer.
const echoPort = 8000

// leaseTime is the limit of a guest's DHCP exchange.
const leaseTime = time.Minute

// boot starts a guest of this process on the tap of a pod's NIC, with an address from the pod's launcher.
func (c *Cluster) boot(t testing.TB, p *pod, nic string) *guest.Guest {
	t.Helper()
	g := nstest.Boot(t, p.File, c.record(t, p, nic), "guest")
	ctx, cancel := context.WithTimeout(t.Context(), leaseTime)
	defer cancel()
	lease, err := g.DHCPv4(ctx)
	if err == nil && lease.Address.Addr() != p.address {
		err = fmt.Errorf("the guest's address is %v, and the pod's %v", lease.Address, p.address)
	}
	if err == nil {
		err = g.ListenTCP(echoPort)
	}
	if err != nil {
		out, _ := c.TryKubectl("", "logs", "--namespace="+p.namespace, p.name)
		t.Fatalf("guest of pod %s: %v\nits launcher: %s", p.name, err, out)
	}
	return g
}

// stream is a TCP connection to an echo, with data all the time.
type stream struct {
	conn net.Conn
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	octets  int   // that have come back
	err     error // of the end
}

// newStream connects from a namespace to an echo, which says a line first. The stream is checked again when the test
// ends.
func newStream(t testing.TB, from *nstest.Namespace, to netip.AddrPort) *stream {
	t.Helper()
	s := &stream{stop: make(chan struct{}), done: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	// The proxy refuses connections to a Service until it knows that a pod of the Service is ready.
	nstest.Eventually(t, func() error {
		return netns.Do(from.File, func() (err error) {
			s.conn, err = net.DialTimeout("tcp", to.String(), patience)
			return err
		})
	})
	go s.run()
	t.Cleanup(func() { s.close(t) })
	return s
}

// run sends blocks of random octets at a pace, and compares.
func (s *stream) run() {
	defer close(s.done)
	in := bufio.NewReader(s.conn)
	_, err := in.ReadString('\n')
	random := rand.NewChaCha8([32]byte{})
	block, answer := make([]byte, 1000), make([]byte, 1000)
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	for err == nil {
		random.Read(block)
		if _, err = s.conn.Write(block); err == nil {
			_, err = io.ReadFull(in, answer)
		}
		if err == nil && !bytes.Equal(block, answer) {
			err = errors.New("other octets came back than were sent")
		}
		s.mu.Lock()
		s.octets, s.err = s.octets+len(block), err
		s.changed.Broadcast()
		s.mu.Unlock()
		select {
		case <-s.stop:
			return
		case <-pace.C:
		}
	}
}

// goesOn waits until more octets have come back.
func (s *stream) goesOn(t testing.TB) {
	t.Helper()
	late := time.AfterFunc(patience, func() { s.conn.SetDeadline(time.Now()) })
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for want := s.octets + 20_000; s.octets < want; s.changed.Wait() {
		if s.err != nil {
			t.Fatalf("the stream has ended after %d octets: %v", s.octets, s.err)
		}
	}
}

func (s *stream) close(t testing.TB) {
	t.Helper()
	late := time.AfterFunc(patience, func() { s.conn.SetDeadline(time.Now()) })
	defer late.Stop()
	select {
	case <-s.stop:
		return
	default:
		close(s.stop)
	}
	<-s.done
	if s.err != nil {
		t.Errorf("the stream has ended after %d octets: %v", s.octets, s.err)
	}
	s.conn.Close()
}

// pings counts the answers to ping(8).
type pings struct {
	cmd   *exec.Cmd
	ended chan struct{} // out is valid then
	out   []string      // what is no answer
}

// newPings sends 50 echo requests a second from a namespace. It waits for the first answer.
func newPings(t testing.TB, from *nstest.Namespace, to netip.Addr) *pings {
	t.Helper()
	p := &pings{cmd: exec.Command("nsenter", "--net="+from.Path(), "ping", "-n", "-i", "0.02", to.String()), ended: make(chan struct{})}
	out, err := p.cmd.StdoutPipe()
	p.cmd.Stderr = p.cmd.Stdout
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(p.ended)
		first := sync.OnceFunc(func() { close(answered) })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if line := lines.Text(); strings.Contains(line, " bytes from ") {
				first()
			} else {
				p.out = append(p.out, line)
			}
		}
	}()
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			<-p.ended
			p.cmd.Wait()
		}
	})
	select {
	case <-answered:
	case <-p.ended:
		t.Fatalf("ping: %q", p.out)
	case <-time.After(patience):
		t.Fatalf("%v answers no ping", to)
	}
	return p
}

// end ends the pings, and returns how many were sent. An answer to the last one may be on its way.
func (p *pings) end(t testing.TB) (sent int) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	p.cmd.Wait() // the status reports whether anything has answered
	for _, line := range p.out {
		if f := strings.Fields(line); len(f) > 4 && f[1] == "packets" {
			sent, _ = strconv.Atoi(f[0])
			if received, _ := strconv.Atoi(f[3]); received >= max(1, sent-1) {
				return sent
			}
		}
	}
	t.Errorf("pings are lost: %q", p.out)
	return sent
}

// leftovers lists what pods have on the node, a line each. Namespaces and links are those of all pods, so two lists are
// compared. The pods of guestwire's DaemonSets, which have the node's network, are left out.
func (c *Cluster) leftovers(t testing.TB) string {
	t.Helper()
	own := strings.Fields(c.Kubectl(t, "", "get", "pods", "--namespace="+system, "--output=jsonpath={.items[*].metadata.uid}"))
	var lines []string
	for _, pattern := range []string{
		"/var/lib/cni/networks/*/*", // addresses
		"/var/lib/cni/results/*",
		"/run/guestwire/*/*",
		"/run/guestwire.lock/*",
		"/run/netns/*",
		"/sys/fs/cgroup/*/kubepods/*/pod*", "/sys/fs/cgroup/*/kubepods/pod*",
		"/sys/fs/cgroup/kubepods/*/pod*", "/sys/fs/cgroup/kubepods/pod*",
		"/var/lib/kubelet/pods/*",
	} {
		found, err := filepath.Glob(c.Path(pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			isOwn := slices.ContainsFunc(own, func(uid string) bool { return strings.Contains(path, uid) })
			// Of host-local: a file of the last address, and one to lock. Of guestwire: the plugin's calls.
			if name := filepath.Base(path); !isOwn && !strings.HasPrefix(name, "last_reserved_ip") && name != "lock" && name != "cni-calls" {
				lines = append(lines, strings.TrimPrefix(path, c.Path("")))
			}
		}
	}
	for line := range strings.Lines(c.MustRun(t, "ip", "-brief", "link")) {
		if name := strings.Fields(line)[0]; name != "cni0" { // which the first pod brings, and which stays
			lines = append(lines, "link "+name)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// gone waits until the node holds no more than before.
func (c *Cluster) gone(t testing.TB, before string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		var more []string
		for line := range strings.Lines(c.leftovers(t)) {
			if !strings.Contains(before, line) {
				more = append(more, line)
			}
		}
		if len(more) > 0 {
			return fmt.Errorf("left on the node:\n%s", strings.Join(more, ""))
		}
		return nil
	})
}
