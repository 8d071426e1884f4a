package podnet

import (
	"bytes"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestSDN: a process reaches all stations of OpenShift SDN also by the services' addresses, and is reached by its own
// service and the hostport. Multicast of pods on both nodes comes to the pod.
func TestSDN(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	l := createSDN(t)
	for q, answer := range l.ready(t).askProcess(t, tcp) {
		if answer == "" {
			t.Errorf("%s does not reach %s at %v", q.from, q.to, q.at)
		}
	}
	at := l.Pod.Sniff(t)
	for i, s := range l.Stations[1:3] {
		group := frames.Link{MAC: macAt(t, s.Namespace), Gateway: cache.MAC{0x01, 0, 0x5e, 1, 2, 3}, Far4: addr("239.1.2.3")}
		frame := group.Sentinel(s.IPv4, i)
		came := func(f nstest.Sniffed) bool { return bytes.Equal(f.Frame, frame) }
		at.Until(came, func() { s.Namespace.Send(t, "eth0", frame) })
	}
}
