package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/guestwire/guestwire/internal/netns"
)

// nic is the name of every pod's NIC. Its index is 2.
const nic = "eth0"

// pod is a namespace as a network plugin leaves it. All pods are alike, also in the NIC's MAC and index.
type pod struct {
	name  string
	peer  string // name of the other end of its NIC
	file  *os.File
	state string
}

// node is the directory for journals of all pods. It is beside the state directories, so that a journal can be linked
// into them.
func (p *pod) node() string { return filepath.Join(filepath.Dir(p.state), "node") }

// podNIC is the batch of ip(8) that configures a pod. The gateways have static neighbour entries: otherwise Setup would ask
// for the IPv6 gateway's MAC and wait for the answer.
const podNIC = `link set lo up
link add name ` + nic + ` address 02:00:00:00:00:07 type veth peer name %s netns %d
link set ` + nic + ` up
addr add 10.244.1.7/24 brd + dev ` + nic + `
addr add fd00:10:244:1::7/64 dev ` + nic + `
route add default via 10.244.1.1
route add ::/0 via fd00:10:244:1::1 dev ` + nic + `
neigh add 10.244.1.1 lladdr 02:00:00:00:00:01 nud reachable dev ` + nic + `
neigh add fd00:10:244:1::1 lladdr 02:00:00:00:00:01 nud reachable dev ` + nic + `
`

// answerAsGateway lets the other end of the NIC answer for the pod's gateways, with the MAC of podNIC. Check asks for it, and would
// wait for the answer.
func (p *pod) answerAsGateway(ctx context.Context) error {
	return ip(ctx, strings.ReplaceAll(`link set %s address 02:00:00:00:00:01
addr add 10.244.1.1/32 dev %s
addr add fd00:10:244:1::1/128 dev %s nodad
`, "%s", p.peer), "-n", "world")
}

var pods int

// newPod creates a pod. The other ends of all NICs are in the namespace "world".
func newPod(ctx context.Context, dir string) (*pod, error) {
	if pods == 0 {
		if err := ip(ctx, "netns add world\n"); err != nil {
			return nil, err
		}
	}
	pods++
	p := &pod{name: fmt.Sprintf("pod%d", pods), peer: fmt.Sprintf("veth%d", pods)}
	p.state = filepath.Join(dir, p.name)
	var err error
	if p.file, err = newNamespace(ctx, p.name); err != nil {
		return nil, err
	}
	batch := strings.NewReplacer("%s", p.peer, "%d", "world").Replace(podNIC)
	if err := ip(ctx, batch, "-n", p.name); err != nil {
		return nil, err
	}
	return p, ip(ctx, "link set "+p.peer+" up\n", "-n", "world")
}

// newNamespace creates an empty namespace. Its sysctls are such that addresses and links are ready without a wait.
func newNamespace(ctx context.Context, name string) (*os.File, error) {
	if err := ip(ctx, "netns add "+name+"\n"); err != nil {
		return nil, err
	}
	file, err := os.Open(namespacePath(name))
	if err != nil {
		return nil, err
	}
	return file, netns.Do(file, func() error {
		for _, setting := range []string{"accept_dad", "router_solicitations"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/"+setting, []byte("0"), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

func namespacePath(name string) string { return "/run/netns/" + name }

// waitSettled waits until the NIC has its link-local address, which the kernel adds last.
func (p *pod) waitSettled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		var text []byte
		err := netns.Do(p.file, func() (err error) {
			text, err = os.ReadFile("/proc/thread-self/net/if_inet6")
			return err
		})
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "fe80") && strings.HasSuffix(line, " "+nic+"\n") {
				return nil
			}
		}
		if err := sleep(ctx, settleTime); err != nil {
			return fmt.Errorf("wait for the link-local address of %s: %w", nic, err)
		}
	}
}

func (p *pod) path() string { return namespacePath(p.name) }

// closePods deletes pods and waits until the kernel has cleaned them up, when the other ends of their NICs vanish.
func closePods(all []*pod) error {
	var names strings.Builder
	for _, p := range all {
		p.file.Close()
		fmt.Fprintln(&names, "netns del", p.name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := ip(ctx, names.String()); err != nil {
		return err
	}
	for {
		out, err := exec.CommandContext(ctx, "ip", "-n", "world", "link", "show", "type", "veth").CombinedOutput()
		if err != nil {
			return fmt.Errorf("wait for namespaces to end: %w: %s", err, out)
		}
		if len(out) == 0 {
			return nil
		}
		if err := sleep(ctx, settleTime); err != nil {
			return fmt.Errorf("wait for namespaces to end: %w", err)
		}
	}
}

// ip runs ip(8) on a batch.
func ip(ctx context.Context, batch string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "ip", append(flags, "-batch", "-")...)
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip -batch: %w: %s", err, out)
	}
	return nil
}

// describeScript prints all that can differ between two wirings. It also shows which links do not exist.
const describeScript = `for l in lo eth0 eth0-nic eth0-br eth0-dhcp eth0-tap; do
	echo "# $l"
	{ ip -d addr show dev $l && bridge -d link show dev $l && tc qdisc show dev $l && tc filter show dev $l ingress; } 2>&1 || :
done
ip -br link | wc -l
ip route; ip -6 route; ip neigh show nud permanent | sort; nft list tables | sort | while read -r table; do nft -s -t list $table; done | sed -E 's/(typeof|type ipv).*/type/' # nft names the type of its own sets in other words
sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv6.conf.eth0.accept_ra
sysctl -a -r 'net\.ipv[46]\.conf\..*\.forwarding'`

// volatile matches what differs between equal wirings: timers, carrier, the state of duplicate address detection, a tap's
// MAC, the numbers of links and ports, and tc's two names of the ingress qdisc.
var volatile = regexp.MustCompile(`(?m)^[0-9]+: | tentative|_timer +[0-9.]+|parent ffff: |state [A-Z]+|(,NO-CARRIER|NO-CARRIER,|,LOWER_UP|,M-DOWN)|linkdown|@if[0-9]+|link-netns \w+|` +
	`^ +link/ether \S+ brd \S+ (link-netns \w+ )?promiscuity \d+ .*\n +tun type tap|port_(id|no) \S+|designated_\w+ \S+`)

func (p *pod) describe(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nsenter", "--net="+p.path(), "sh", "-ec", describeScript).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("look at namespace %s: %w: %s", p.name, err, out)
	}
	return volatile.ReplaceAllString(string(out), ""), nil
}

// checkSame returns an error unless all ways, but those apart, have left the same in their pods. The pods are sorted by way;
// each is the number per way.
func checkSame(ctx context.Context, ways []way, pods []*pod, each int) error {
	first, err := pods[0].describe(ctx)
	if err != nil {
		return err
	}
	for i, p := range pods {
		if ways[i/each].apart {
			continue
		}
		text, err := p.describe(ctx)
		if err != nil {
			return err
		}
		if text != first {
			return fmt.Errorf("%q and %q did not do the same:\n%s", ways[0].name, ways[i/each].name, difference(first, text))
		}
	}
	return nil
}

// difference returns the lines that only one of the texts has.
func difference(a, b string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, text, other string }{{"- ", a, b}, {"+ ", b, a}} {
		there := map[string]bool{}
		for line := range strings.Lines(side.other) {
			there[line] = true
		}
		for line := range strings.Lines(side.text) {
			if !there[line] {
				out.WriteString(side.mark + line)
			}
		}
	}
	return out.String()
}
