package phase1_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/frames"
	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// TestOuterServers has the network offer addresses and routes to a guest that is the pod. One with a responder does not
// hear of it, and the drops are counted; one without hears everything.
func TestOuterServers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]infra.Spec{
		"bridge, served":       {Binding: infra.Bridge{}},
		"bridge, not served":   {Binding: infra.Bridge{}, Options: cache.Options{NoResponder: true}},
		"redirect, served":     {Binding: infra.Redirect{}},
		"redirect, not served": {Binding: infra.Redirect{}, Options: cache.Options{NoResponder: true}},
	} {
		t.Run(name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			options := c.Options
			c := config(n, c.Binding)
			c.Options = options
			setup(t, c)
			w := attachDeaf(t, n, true, true)
			for i, k := range frames.Outer(w.link) {
				before := w.dropped()
				came := comes(t, w, k.Frames, i)
				for again := 0; !came && !w.link.Served && again < 3; again++ { // a busy machine loses frames
					came = comes(t, w, k.Frames, i)
				}
				want := ""
				if w.link.Served {
					want = fmt.Sprintf("%s %d", k.Reason, len(k.Frames))
				}
				if have := more(before, w.dropped()); have != want {
					t.Errorf("%s: dropped %q, want %q", k.Name, have, want)
				}
				if came == w.link.Served {
					t.Errorf("%s: came to the guest: %v", k.Name, came)
				}
			}
			if have := more(w.dropped(), dropped(t, n.Pod)); have != "" {
				t.Errorf("nft tells of more drops: %s", have)
			}
		})
	}
}

// comes sends frames from the gateway, and says whether the first of them comes to the guest.
func comes(t *testing.T, w *wire, list [][]byte, number int) (came bool) {
	t.Helper()
	sentinel := w.link.FromGateway().Sentinel(w.link.Gateway4, number)
	if err := w.inject(append(list[:len(list):len(list)], sentinel)...); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1<<16)
	for end := time.Now().Add(time.Minute); ; {
		if err := w.port.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		size, err := w.port.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			if err := w.inject(sentinel); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(buffer[:size], sentinel) {
			return came
		}
		came = came || bytes.Equal(buffer[:size], list[0])
	}
}
