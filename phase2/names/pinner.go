package names

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"

	"github.com/guestwire/guestwire/internal/pinmessage"
	"github.com/guestwire/guestwire/internal/syntax"
)

// entries are the names of the list.
type entries struct {
	list     []pinmessage.Name
	exact    map[string]int32 // places in the list
	suffixes map[string]int32 // by the name without "*."
	nat64    netip.Prefix     // the site's, for pinmessage.Allowed
}

func newEntries(list []pinmessage.Name) entries {
	e := entries{list: list, exact: map[string]int32{}, suffixes: map[string]int32{}}
	for i, n := range list {
		if rest, is := strings.CutPrefix(n.Name, "*."); is {
			e.suffixes[rest] = int32(i)
		} else {
			e.exact[n.Name] = int32(i)
		}
	}
	return e
}

// find returns the place of the longest entry for the name. An entry with "*." is for names of hosts alone: other
// octets in front of it would be for a log or for its name servers.
func (e entries) find(name string) (place int, found bool) {
	if i, is := e.exact[name]; is {
		return int(i), true
	}
	if syntax.CheckName(name, syntax.MaxName) != nil {
		return 0, false
	}
	for {
		_, rest, more := strings.Cut(name, ".")
		if !more {
			return 0, false
		}
		if i, is := e.suffixes[rest]; is {
			return int(i), true
		}
		name = rest
	}
}

// receiveNames reads the list with which the conversation begins.
func receiveNames(pins net.Conn) (entries, error) {
	message, err := receive(pins)
	if err != nil {
		return entries{}, err
	}
	n, nat64, err := pinmessage.Count(message)
	if err != nil {
		return entries{}, err
	}
	list := make([]pinmessage.Name, n)
	for i := range list {
		if message, err = receive(pins); err != nil {
			return entries{}, err
		}
		if list[i], err = pinmessage.ParseName(message); err != nil {
			return entries{}, err
		}
	}
	e := newEntries(list)
	e.nat64 = nat64
	return e, nil
}

// sendReady reports that questions are answered from now on.
func sendReady(pins net.Conn) error {
	_, err := pins.Write(pinmessage.AppendReady(nil))
	return withProgram(err)
}

func receive(pins net.Conn) ([]byte, error) {
	message := make([]byte, pinmessage.MaxSize+1)
	n, err := pins.Read(message)
	return message[:n], withProgram(err)
}

// withProgram is an error of the conversation with the name of the other program.
func withProgram(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE):
		err = errors.New("it has ended the conversation")
	}
	return fmt.Errorf("phase1/pins: %w", err)
}

// pinner has the other process pin addresses, one answer at a time.
type pinner struct {
	conn    net.Conn
	asking  sync.Mutex
	replies chan []byte
}

// receiveAll receives replies until the conversation ends.
func (p *pinner) receiveAll(ctx context.Context) error {
	for {
		message, err := receive(p.conn)
		if err != nil {
			return err
		}
		select {
		case p.replies <- message:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pin returns the addresses of the request that are pinned.
func (p *pinner) pin(ctx context.Context, r pinmessage.Request) ([]netip.Addr, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	if _, err := p.conn.Write(r.Append(nil)); err != nil {
		return nil, err
	}
	select {
	case message := <-p.replies:
		reply, err := pinmessage.ParseReply(message, r)
		if err == nil && reply.Failed {
			err = errors.New("the addresses cannot be pinned now: phase1/pins logs why")
		}
		return reply.Pinned, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
