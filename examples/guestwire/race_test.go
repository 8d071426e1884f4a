package main_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// TestAtOnce: what a sandbox's other calls do to an ADD of its second network: two DELs of the first network, and a GC
// to which the first is not valid. The ADD succeeds, its NIC stays wired, and no call is an error.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, two := n.usual(), n.list("1.0.0", "second", n.bridge("cni1", "10.23.0.0/16", "fd00:23::/64"), n.guestwire(owner("")))
	for i := range 10 {
		s := n.sandbox(fmt.Sprintf("u%d", i))
		both := []string{"guestwire/nic.eth0", "redirect", "guestwire/nic.eth1", "masquerade"}
		rt1, rt2 := s.runtime("eth0", both...), s.runtime("eth1", both...)
		s.add(one, rt1)
		var working sync.WaitGroup
		working.Go(func() {
			if _, err := n.cni.AddNetworkList(t.Context(), two, rt2); err != nil {
				t.Errorf("ADD: %v", err)
			}
		})
		for range 2 {
			working.Go(func() {
				if _, err := n.guestwireCalled(s.configuration(one.Plugins[1].Bytes, nil, rt1), s.environ("DEL", "eth0")...); err != nil {
					t.Errorf("DEL: %v", err)
				}
			})
		}
		for range 3 {
			working.Go(func() {
				if _, err := n.gc(one, []types.GCAttachment{}); err != nil {
					t.Errorf("GC: %v", err)
				}
			})
		}
		working.Wait()
		s.wired("eth1")
		s.del(two, rt2)
		s.del(one, rt1)
		n.clean()
		s.ns.End()
	}
}

// TestSecondSandbox: an ADD of another sandbox with a namespace that is wired for the first fails, and leaves the first
// as it was, and nothing of itself. Its DEL does as well.
func TestSecondSandbox(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	before := n.files()
	second := &sandboxOf{n, s.ns, "c-second", "u2"}
	rt2 := second.runtime("eth0", "guestwire/nic.eth0", "redirect")
	result, err := n.cni.GetNetworkListCachedResult(list, rt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.guestwireCalled(second.configuration(list.Plugins[1].Bytes, result, rt2), second.environ("ADD", "eth0")...); err == nil || !strings.Contains(err.Msg, s.dirOf()) {
		t.Errorf("ADD: %v", err)
	}
	if have := n.files(); !slices.Equal(have, before) {
		t.Errorf("ADD left %q, want %q", have, before)
	}
	if _, err := n.guestwireCalled(second.configuration(list.Plugins[1].Bytes, nil, rt2), second.environ("DEL", "eth0")...); err != nil {
		t.Error(err)
	}
	if have := n.files(); !slices.Equal(have, before) {
		t.Errorf("DEL left %q, want %q", have, before)
	}
	if err := n.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
		t.Error(err)
	}
	s.del(list, rt)
	n.clean()
}
