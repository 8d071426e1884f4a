package main_test

import (
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// TestBindings: a list of a bridge and guestwire, as an engine runs it.
func TestBindings(t *testing.T) {
	t.Parallel()
	for _, binding := range []string{"bridge", "redirect", "masquerade", "auto"} {
		t.Run(binding, func(t *testing.T) {
			n := newNode(t)
			s := n.sandbox("7d5a0001")
			list := n.usual()
			rt := s.runtime("eth0", "guestwire/nic.eth0", binding)
			empty := s.ns.Settled()
			s.add(list, rt)
			if err := n.cni.CheckNetworkList(t.Context(), list, rt); (err == nil) == (binding == "bridge") {
				t.Errorf("CHECK: %v", err)
			}
			s.del(list, rt)
			n.clean()
			if err := nstest.Difference(empty, s.ns.Settled()); err != nil {
				t.Error(err)
			}
		})
	}
}
