package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// checkPort refuses a NIC that is another link's port. A VRF has links and no ports: which binding works there is
// checkVRF's.
func (s *seen) checkPort() error {
	nic := s.nic
	for _, l := range s.found.Links {
		if slices.Contains(l.Ports, nic.Index) {
			return fmt.Errorf("%w, it is a port of %s: name %[2]s in its place", infra.ErrWired, l.Name)
		}
	}
	master, ok := s.found.Link(nic.Master)
	if !ok || nic.Master == 0 {
		return nil
	}
	if wired, marked := netstate.Marked(master.Alias); marked {
		return RenamedError(wired)
	}
	switch master.Kind {
	case kindVRF:
		return nil
	case "bond", "team", "": // which has the addresses, and loses its network with its ports; "": a driver's failover
		return fmt.Errorf("%w, it is a port of %s: name %[2]s in its place", infra.ErrWired, master.Name)
	case "openvswitch":
		return fmt.Errorf("%w, it is a port of Open vSwitch: take it off first (ovs-vsctl del-port %s)", infra.ErrWired, infra.ShellWord(nic.Name))
	}
	return fmt.Errorf("%w, it is a port of %s: take it off first (ip link set %s nomaster), or name %[2]s in its place", infra.ErrWired, master.Name, infra.ShellWord(nic.Name))
}

// RenamedError says that a link is a NIC that is wired under its own name.
func RenamedError(wired string) error {
	return fmt.Errorf("%w, it is the wired NIC %s under another name: name %[2]s", infra.ErrWired, wired)
}

// checkVRF refuses a VRF, and a NIC in a VRF with a binding that does not leave the NIC there, or that sends the
// guest's packets by the table main.
func (s *seen) checkVRF() error {
	nic := s.nic
	if nic.Kind == kindVRF {
		ports := portsOf(s.found, nic)
		way := "name a link in it, of " + linkNames(netstate.Snapshot{Links: ports})
		if len(ports) == 0 {
			way = fmt.Sprintf("no link is in it: put one there (ip link set NIC master %s), and name that", infra.ShellWord(nic.Name))
		}
		return &cache.FieldError{Field: "nic", Reason: fmt.Sprintf("%s is a VRF, which carries no frames: %s", nic.Name, way)}
	}
	vrf := s.links.vrfOf(nic)
	if vrf.VRF == 0 {
		return nil
	}
	switch s.spec.Binding.Kind() {
	case cache.BindingBridge:
		return s.refuse(fmt.Sprintf("it is in the VRF %s, and a bridge's port can be in none", vrf.Name))
	case cache.BindingRouted, cache.BindingMasquerade, cache.BindingPasst, cache.BindingSlirp:
		return s.refuse(fmt.Sprintf("it is in the VRF %s, and what the guest sends would be looked up in the table main", vrf.Name))
	}
	return nil
}

// whyPortsMAC is why the MACs of a bond's ports keep frames from a guest with the bond's MAC; empty: they do not.
func whyPortsMAC(nic netstate.Link) string {
	switch nic.Mode {
	case netstate.ModeActive:
		return "it takes the MAC of another port at a failover (fail_over_mac active), and the guest keeps its own"
	case netstate.ModeALB:
		return "it gives stations the MACs of its ports (balance-alb), and the guest has one"
	}
	return ""
}
