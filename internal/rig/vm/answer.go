package vm

import (
	"fmt"
	"io"
	"net/netip"
)

// Answer is what a guest sends on AnswerPort.
type Answer struct {
	// Guest is the guest's name.
	Guest string
	// Peer is the client's address as the guest saw it.
	Peer netip.AddrPort
}

// ReadAnswer reads the answer from a connection to AnswerPort.
func ReadAnswer(r io.Reader) (Answer, error) {
	line, err := io.ReadAll(io.LimitReader(r, 1024))
	if err != nil {
		return Answer{}, fmt.Errorf("guest's answer: %w", err)
	}
	var a Answer
	var addr string
	var port uint16
	if _, err := fmt.Sscanf(string(line), "guest %s peer %s %d\n", &a.Guest, &addr, &port); err != nil {
		return Answer{}, fmt.Errorf("guest's answer %q: %w", line, err)
	}
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return Answer{}, fmt.Errorf("guest's answer %q: %w", line, err)
	}
	a.Peer = netip.AddrPortFrom(ip, port)
	return a, nil
}
