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

// run runs the keeper until end is called, which returns the error of Run.
func (l *live) run(t *testing.T) (end func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// ask asks once, by UDP or TCP, and returns the code.
func (l *live) ask(network, name string) (code dnsmessage.RCode, err error) {
	return code, netns.Do(l.ns.File, func() error {
		c, err := net.Dial(network, liveAt)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		q := dnsmessage.Message{Header: dnsmessage.Header{ID: 4711}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
		message, err := q.Pack()
		if err != nil {
			return err
		}
		if network == "tcp" {
			message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
		}
		if _, err := c.Write(message); err != nil {
			return err
		}
		reply := make([]byte, 4096)
		n, err := c.Read(reply)
		if err != nil {
			return err
		}
		if reply = reply[:n]; network == "tcp" {
			reply = reply[2:]
		}
		var m dnsmessage.Message
		err = m.Unpack(reply)
		code = m.RCode
		return err
	})
}

// TestReady: when Ready is called, a question gets an answer, by UDP and TCP. It is called once, also if the proxy is
// started again.
func TestReady(t *testing.T) {
	l := newLive(t)
	ready := make(chan struct{}, 9)
	l.Ready = func() { ready <- struct{}{} }
	end := l.run(t)
	<-ready
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
	if err := end(); err != nil {
		t.Error(err)
	}
	if n := len(ready); n != 0 {
		t.Errorf("Ready was called %d times more", n)
	}
}
