package examples_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// wiredBefore is a line that a reader of some pages has typed before.
const wiredBefore = "guestwire-agent setup -netns /run/netns/pod -nic eth0 -binding redirect -state /run/guestwire/vm1 -uid 107\n"

// howTos are the pages of docs/how-to whose commands TestHowTo types.
var howTos = []struct {
	page, before, after string
	says                []string
}{
	{page: "choose-a-binding", says: []string{"# binding: redirect", "# binding: bridge", `<range start="8080" to="80">`}},
	{page: "egress", says: []string{"refuse link-local", "refuse metadata", "allow all 443/tcp", "egressWithin", "# nat64: an IPv4 network of egress is also its addresses in 2001:db8:64::/96", "198.51.100.7 . udp . 53 timeout 5m"}, after: "guestwire-agent teardown -netns /run/netns/pod -nic eth0"},
	{page: "flows", says: []string{"allow resolvers 53/udp"}, after: "guestwire-agent status -netns /run/netns/pod -nic eth0; guestwire-agent teardown -netns /run/netns/pod -nic eth0"},
	{page: "own-firewall-rules", says: []string{"counter"}, after: "ip netns exec pod nft list table inet mine; guestwire-agent teardown -netns /run/netns/pod -nic eth0"},
	{
		page:   "move",
		before: wiredBefore + "SOURCE=/run/netns/pod TARGET=/run/netns/pod2; cp /run/guestwire/vm1/eth0.json source.json",
		after:  "guestwire-agent list; guestwire-agent teardown -netns $TARGET -nic eth0",
		says:   []string{"/run/guestwire/vm2"},
	},
	{
		page: "snapshot", before: wiredBefore, after: "guestwire-agent list; guestwire-agent teardown -netns /run/netns/pod2 -nic eth0",
		says: []string{"/run/guestwire/vm2"},
	},
	{
		page: "firecracker-snapshot", // with the pods' addresses in worlds of their own, and a process in the place of Firecracker
		before: `ip -n pod2 addr flush dev eth0; ip -n pod2 addr add 10.0.0.3/24 dev eth0; ip -n pod2 route add default via 10.0.0.1
mount -t tmpfs srv /srv; mkdir /srv/snapshot; touch /srv/snapshot/memory; cp $FIRECRACKER /usr/local/bin/firecracker
cat >/srv/snapshot/vmstate <<'END'
{"iface_id": "eth0", "host_dev_name": "vmtap0", "guest_mac": "06:00:ac:10:00:02", "address": "172.16.0.2", "gateway_mac": "02:fc:00:00:00:01", "asks": "10.0.0.1"}
END
kill() { # the worlds ask the guests before the page ends them
	ip netns exec world-pod ping -c 1 -w 60 10.0.0.2; ip netns exec world-pod2 ping -c 1 -w 60 10.0.0.3
	builtin kill "$@"
}
trap 'jobs -p | xargs -r kill' EXIT
`,
		after: "guestwire-agent list",
		says:  []string{"64 bytes from 10.0.0.2: icmp_seq=1 ttl=63", "64 bytes from 10.0.0.3: icmp_seq=1 ttl=63"},
	},
	{page: "upgrade", before: wiredBefore + "cd $CLONE", after: "guestwire-agent list", says: []string{"VERSION", "/run/guestwire/vm1"}},
}

// TestHowTo types the commands of pages of docs/how-to, on a machine on which guestwire never ran, with two pods: pod
// and pod2. What the reader of a page has done before is typed before it, and at the end nothing is wired.
func TestHowTo(t *testing.T) {
	nstest.Need(t, "unshare", "iptables", "ip6tables", "curl", "ping")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	const machine = `
set -euo pipefail
umount /etc/resolv.conf; mount -t tmpfs run /run; mount -t tmpfs bin /usr/local/bin
cp $AGENT /usr/local/bin/guestwire-agent; cp $LAUNCHER /usr/local/bin/guestwire-launcher; mkdir /run/guestwire
for pod in pod pod2; do
	ip netns add $pod; ip netns add world-$pod
	ip -n $pod link add eth0 address 02:00:00:00:00:02 type veth peer name $pod netns world-$pod
	ip -n $pod addr add 10.0.0.2/24 dev eth0; ip -n $pod link set eth0 up; ip -n $pod route add default via 10.0.0.1
	ip -n world-$pod addr add 10.0.0.1/24 dev $pod; ip -n world-$pod link set $pod up
done
exec 9>/dev/null; BASH_XTRACEFD=9 # what the pages show is what the commands print, and not the commands
set -x
`
	const end = `
set +x
for pod in pod pod2; do [ -z "$(ip -n $pod link show type tun)" ]; ip netns del $pod; ip netns del world-$pod; done
`
	for _, page := range howTos {
		t.Run(page.page, func(t *testing.T) {
			const patience = 5 * time.Minute
			leak.Allow(patience)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			script := machine + page.before + "\n" + nstest.Commands(t, "../docs/how-to/"+page.page+".md", "") + page.after + end
			cmd := exec.CommandContext(ctx, "unshare", "--mount", "bash", "-c", script)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:"+os.Getenv("PATH"),
				"CLONE="+nstest.Root(t), "AGENT="+nstest.Program(t, "examples/guestwire-agent"), "LAUNCHER="+nstest.Program(t, "examples/guestwire-launcher"),
				"FIRECRACKER="+nstest.Program(t, "internal/test/restored"))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			for _, says := range page.says {
				if !strings.Contains(string(out), says) {
					t.Errorf("%q is not in:\n%s", says, out)
				}
			}
		})
	}
}
