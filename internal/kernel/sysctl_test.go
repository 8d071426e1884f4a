package kernel

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestReadSysctls: a Snapshot has the values that sysctl(8) shows, from wherever they are read, and no sysctl that the
// kernel does not have, such as one of a link that is not there.
func TestReadSysctls(t *testing.T) {
	nstest.KernelDecides(t, "each has other settings of links")
	nstest.Need(t, "sysctl")
	pod := nstest.New(t, "pod")
	pod.IP("link add eth0 type veth peer name eth0.5")
	paths := []string{"net/ipv4/ip_local_port_range", "net/ipv6/conf/none/forwarding"}
	for name := range settings6 {
		for _, link := range []string{"all", "default", "eth0", "eth0.5", "lo"} {
			paths = append(paths, "net/ipv6/conf/"+link+"/"+name)
		}
		pod.Exec("sysctl", "-qew", "net/ipv6/conf/eth0.5/"+name+"=1")
	}
	pod.Exec("sysctl", "-qw", "net/ipv6/conf/eth0/accept_ra=2")
	want := map[string]string{}
	for _, path := range paths {
		if value := pod.Exec("sysctl", "-ne", path); value != "" { // else the kernel has none
			want[path] = strings.Join(strings.Fields(value), " ")
		}
	}
	for _, set := range [][]string{nil, paths} {
		read := slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return slices.Contains(set, path) })
		if err := inPod(pod, func(n *Namespace) error {
			s, err := n.Snapshot(netstate.NamesFor("eth0", ""), read, nil, set...)
			if !maps.Equal(s.Sysctls, want) || len(s.ReadOnly) > 0 {
				t.Errorf("have %v, which cannot be set %v\nwant %v", s.Sysctls, s.ReadOnly, want)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}
