package wiring

import (
	"github.com/guestwire/guestwire/internal/netstate"
)

// The kernel decides once for a connection whether it is translated. Rules of another program can have the namespace
// track connections. Then it knows UDP exchanges that are older than the wiring, and exchanges that go on when the
// wiring has gone. It has to forget these. TCP connections belong to the sockets that opened them, and stay.

// OlderExchanges come after Steps: the kernel forgets the UDP exchanges that others have opened to ports that the
// wiring translates. What these send next is translated.
func (p *Plan) OlderExchanges() []netstate.Op { return p.olderExchanges }

// OwnConnections come after Undo: the kernel forgets the connections that the wiring has translated, and those with
// addresses that only the wiring had.
func (p *Plan) OwnConnections() []netstate.Op { return p.ownConnections }
