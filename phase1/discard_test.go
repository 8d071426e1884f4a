package phase1_test

import (
	"errors"
	"regexp"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestDiscard: with Discard Teardown removes record and journal, and changes nothing in the namespace. A guest that
// runs is refused first. If the namespace stays nevertheless, Setup names the way back, and that way works.
func TestDiscard(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		t.Parallel()
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		discard := c
		discard.Down.Discard = true
		_, closeTap := openTap(t, n, "eth0-tap", 1)
		wired := settled(t, n)
		if err := discard.Teardown(t.Context()); !errors.Is(err, phase1.ErrInUse) {
			t.Errorf("%v, want ErrInUse", err)
		}
		record(t, n)
		journal(t, n)
		closeTap()
		unwire(t, discard)
		if err := difference(wired, settled(t, n)); err != nil {
			t.Errorf("the namespace has changed: %v", err)
		}
		filesAreGone(t, n)
		if _, err := c.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
			t.Errorf("Setup: %v, want ErrWired", err)
		}
		var bad *cache.FieldError
		if _, err := discard.ForceTeardown(t.Context()); !errors.As(err, &bad) || bad.Field != "discard" {
			t.Errorf("ForceTeardown with Discard: %v, want a FieldError for discard", err)
		}
		if _, err := c.ForceTeardown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := nothingOfOurs(n); err != nil {
			t.Error(err)
		}
		setup(t, c)
		_, closeTap = openTap(t, n, "eth0-tap", 1)
		defer closeTap()
		cutOff := discard
		cutOff.Down.CutOff = true
		unwire(t, cutOff)
		if err := nothingOfOurs(n); err != nil {
			t.Errorf("a tap that a process has open would keep the namespace: %v", err)
		}
		filesAreGone(t, n)
	})
}

// TestDiscardOfUsedTap: the tap of a running guest is the wiring's whatever its group, and another program's tap is
// not.
func TestDiscardOfUsedTap(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		t.Parallel()
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		c.Down.Discard = true
		_, closeTap := openTap(t, n, "eth0-tap", 1)
		n.Pod.IP("link set eth0-tap group 0")
		if err := c.Teardown(t.Context()); !errors.Is(err, phase1.ErrInUse) {
			t.Errorf("a guest's tap in another group: %v, want ErrInUse", err)
		}
		closeTap()
		n.Pod.IP("tuntap add foreign mode tap")
		n.Pod.IP("link set foreign group 1735852034 alias foreign")
		_, closeForeign := openTap(t, n, "foreign", 1)
		defer closeForeign()
		unwire(t, c) // another program's tap
	})
}

// TestDiscardDevice: the kernel moves a NIC without a link kind to the machine when the namespace ends. Such a NIC gets
// its name, MAC and addresses back also with Discard. The journal of this test says that the NIC is one.
func TestDiscardDevice(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		setup(t, c)
		path, text := journal(t, n)
		device := regexp.MustCompile(`"Kind":"veth"|"kind":"veth"`).ReplaceAllString(text, `"kind":""`)
		if device == text {
			t.Fatalf("the journal names no veth:\n%s", text)
		}
		writeFile(t, path, device)
		c.Down.Discard = true
		teardown(t, n, c, before)
	})
}
