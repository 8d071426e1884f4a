package pins

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// live is a proxy in a namespace, and the guest's question to it.
type live struct {
	*kept
	ns      *nstest.Namespace
	command *exec.Cmd // the last one
}

const liveAt = "127.0.0.1:5353"

func newLive(t *testing.T) *live {
	t.Helper()
	ns := nstest.New(t, "proxy")
	ns.IP("link set lo up")
	conf := filepath.Join(nstest.Dir(t), "resolv.conf")
	if err := os.WriteFile(conf, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l := &live{kept: newKept(t, "names", liveAt, "127.0.0.0/8", conf), ns: ns}
	l.NetNS = ns.File
	start := l.Command
	l.Command = func() *exec.Cmd {
		cmd := start()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.command = cmd
		return cmd
	}
	return l
}

// running runs the keeper until end is called, which returns the error of Run.
func running(t *testing.T, k *Keeper) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	return sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
}

// run runs the keeper, and returns when it is ready.
func (l *live) run(t *testing.T) (end func() error) {
	t.Helper()
	ready := make(chan struct{}, 9)
	l.Ready = func() { ready <- struct{}{} }
	end = running(t, &l.Keeper)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
		if len(ready) > 0 {
			t.Errorf("Ready was called %d times more", len(ready))
		}
		if t.Failed() {
			t.Log(l.out.String())
		}
	})
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		t.Fatal("the proxy is not ready")
	}
	return end
}

// ask asks once, by UDP or TCP, and returns the code.
func (l *live) ask(network, name string) (dnsmessage.RCode, error) {
	c, err := l.dial(network)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return exchange(c, network, name)
}

func (l *live) dial(network string) (c net.Conn, err error) {
	err = netns.Do(l.ns.File, func() error {
		c, err = net.Dial(network, liveAt)
		return err
	})
	if err == nil {
		c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return c, err
}

func exchange(c net.Conn, network, name string) (dnsmessage.RCode, error) {
	if err := sendQuestion(c, network, name); err != nil {
		return 0, err
	}
	return receiveCode(c, network)
}

func sendQuestion(c net.Conn, network, name string) error {
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 4711}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	message, err := q.Pack()
	if err != nil {
		return err
	}
	if network == "tcp" {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
	}
	_, err = c.Write(message)
	return err
}

func receiveCode(c net.Conn, network string) (dnsmessage.RCode, error) {
	reply := make([]byte, 4096)
	n, err := c.Read(reply)
	if err != nil {
		return 0, err
	}
	if reply = reply[:n]; network == "tcp" {
		reply = reply[min(2, n):]
	}
	var m dnsmessage.Message
	err = m.Unpack(reply)
	return m.RCode, err
}

// TestReady: when Ready is called, a question gets an answer, by UDP and TCP. It is called once, also if the proxy is
// started again.
func TestReady(t *testing.T) {
	l := newLive(t)
	l.run(t)
	for _, network := range []string{"udp", "tcp"} {
		if code, err := l.ask(network, "host.internal."); err != nil || code != dnsmessage.RCodeSuccess {
			t.Errorf("%s: %v, %v", network, code, err)
		}
	}
	l.mu.Lock()
	err := l.command.Process.Kill()
	l.mu.Unlock()
	if err != nil {
		t.Error(err)
	}
	nstest.Eventually(t, func() error {
		if l.mu.Lock(); l.starts < 2 {
			l.mu.Unlock()
			return errors.New("it is not started again")
		}
		l.mu.Unlock()
		if code, err := l.ask("udp", "host.internal."); err != nil || code != dnsmessage.RCodeSuccess {
			return fmt.Errorf("%v, %w", code, err)
		}
		return nil
	})
}

// TestNewList: a Run with another list comes after the one with the first, and its proxy has the same port at once,
// though the first one had a connection open.
func TestNewList(t *testing.T) {
	l := newLive(t)
	for i, list := range []string{"a.internal = 10.0.2.1", "b.internal = 10.0.2.1", "a.internal = 10.0.2.1"} {
		l.Names = namesOf(list)
		end := l.run(t)
		c, err := l.dial("tcp")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, network := range []string{"udp", "tcp"} {
			for _, name := range []string{"a.internal.", "b.internal."} {
				want := dnsmessage.RCodeRefused
				if strings.HasPrefix(list, strings.TrimSuffix(name, ".")) {
					want = dnsmessage.RCodeSuccess
				}
				if code, err := l.ask(network, name); err != nil || code != want {
					t.Errorf("list %d, %s by %s: %v, %v, want %v", i, name, network, code, err, want)
				}
			}
		}
		if code, err := exchange(c, "tcp", "a.internal."); err != nil {
			t.Errorf("list %d, the connection: %v, %v", i, code, err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	if n := l.Counters().Restarts; n != 0 {
		t.Errorf("%d restarts", n)
	}
}

// TestHeldSockets: a program that gives each proxy the same sockets loses no question while none runs.
func TestHeldSockets(t *testing.T) {
	l := newLive(t)
	l.proxy[1] = "held"
	var sockets []*os.File
	if err := netns.Do(l.ns.File, func() error {
		c, err := net.ListenPacket("udp", liveAt)
		if err != nil {
			return err
		}
		defer c.Close()
		s, err := net.Listen("tcp", liveAt)
		if err != nil {
			return err
		}
		defer s.Close()
		packets, err := c.(*net.UDPConn).File()
		if err != nil {
			return err
		}
		streams, err := s.(*net.TCPListener).File()
		sockets = []*os.File{packets, streams}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer sockets[0].Close()
	defer sockets[1].Close()
	start := l.Command
	l.Command = func() *exec.Cmd {
		cmd := start()
		cmd.ExtraFiles = sockets
		return cmd
	}
	l.Names = namesOf("a.internal = 10.0.2.1")
	for range 3 {
		waiting := map[string]net.Conn{}
		for _, network := range []string{"udp", "tcp"} {
			c, err := l.dial(network)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := sendQuestion(c, network, "a.internal."); err != nil {
				t.Fatal(err)
			}
			waiting[network] = c
		}
		end := l.run(t)
		for network, c := range waiting {
			if code, err := receiveCode(c, network); err != nil || code != dnsmessage.RCodeSuccess {
				t.Errorf("a question by %s from before: %v, %v", network, code, err)
			}
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}
