package phase1_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestOuterServers has the network offer addresses and routes to a guest that is the pod. One with a responder does not
// learn of it, and the drops are counted; one without receives everything. What is legitimate comes to both.
func TestOuterServers(t *testing.T) {
	nstest.Long(t)
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
			sent, lost := 0, 0
			send := func(k frames.Kind, hostile bool) {
				want := k.Frames // those that come to the guest
				if hostile && w.link.Served {
					want = k.Frames[len(k.Frames)-k.Pass:]
				}
				before := w.dropped()
				sent++
				missing, others := wantInOrder(t, w, k.Frames, want, sent)
				tries := 1
				for ; len(missing) > 0 && len(others) == 0 && tries < 4; tries++ { // a busy machine loses frames
					sent++
					missing, others = wantInOrder(t, w, k.Frames, want, sent)
				}
				counted := ""
				if len(want) < len(k.Frames) {
					counted = fmt.Sprintf("%s %d", k.Reason, tries*(len(k.Frames)-len(want)))
				}
				if have := more(before, w.dropped()); have != counted {
					t.Errorf("%s: dropped %q, want %q", k.Name, have, counted)
				}
				for _, f := range others {
					t.Errorf("%s: came to the guest: %x", k.Name, f[:min(len(f), 100)])
				}
				for _, f := range missing {
					t.Errorf("%s: %s: did not come to the guest: %x", k.Name, k.Why, f[:min(len(f), 100)])
				}
				lost += min(len(missing), 1)
			}
			hostile, legitimate := frames.Outer(w.link), frames.OuterLegitimate(w.link)
			for _, k := range hostile {
				send(k, true)
			}
			for _, k := range legitimate {
				send(k, false)
			}
			t.Logf("%d hostile kinds, %d legitimate ones, of all %d lost", len(hostile), len(legitimate), lost)
			if have := more(w.dropped(), dropped(t, n.Pod)); have != "" {
				t.Errorf("nft reports more drops: %s", have)
			}
		})
	}
}

// wantInOrder sends frames from the gateway. Those in want must come to the guest, in that order. It returns those of
// want that are missing, and those of the others that came.
func wantInOrder(t *testing.T, w *wire, list, want [][]byte, number int) (missing, more [][]byte) {
	t.Helper()
	sentinel := w.link.FromGateway().Sentinel(w.link.Gateway4, number)
	if err := w.inject(append(list[:len(list):len(list)], sentinel)...); err != nil {
		t.Fatal(err)
	}
	missing = slices.Clone(want)
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
		frame := buffer[:size]
		if bytes.Equal(frame, sentinel) {
			return missing, more
		}
		same := func(f []byte) bool { return bytes.Equal(f, frame) }
		switch i := slices.IndexFunc(missing, same); {
		case i >= 0:
			missing = slices.Delete(missing, i, i+1)
		case slices.ContainsFunc(list, same) && !slices.ContainsFunc(want, same):
			more = append(more, slices.Clone(frame))
		}
	}
}
