package podnet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/guestwire/guestwire/internal/rig/vm"
)

// askLinux asks a question once, from the guest or from a station.
func (l *Instance) askLinux(ctx context.Context, g *vm.Guest, q question) (string, error) {
	if q.from == pod {
		line, err := g.Run(ctx, fmt.Sprintf("nc -w 3 %v %d </dev/null", q.at.Addr(), q.at.Port()))
		if err != nil {
			return "", err
		}
		return withoutPort(line)
	}
	station := l.Stations[slices.IndexFunc(l.Stations, func(s Station) bool { return s.Name == q.from })]
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := station.dial(ctx, q.at)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := vm.ReadAnswer(conn)
	return fmt.Sprintf("%s sees %v", answer.Guest, answer.Peer.Addr()), err
}
