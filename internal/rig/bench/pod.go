package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/sandbox"
	"github.com/guestwire/guestwire/phase1"
)

// The pod's NIC, whose index is 2, and the guest's tap.
const (
	nic      = lab.NIC
	guestTap = nic + "-tap"
)

// The addresses of every pod and its gateways. All pods are alike, so that the floor's messages fit each of them.
var (
	podMAC, gatewayMAC = cache.MAC{2, 0, 0, 0, 0, 7}, cache.MAC{2, 0, 0, 0, 0, 1}
	pods               = [2]netip.Addr{lab.Pod4, lab.Pod6}
	gateways           = [2]netip.Addr{lab.Gateway4, lab.Gateway6}
)

var bindings = []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}}

// world is the namespace at the other end of its pods' NICs. Its directory is on a tmpfs, like /run.
type world struct {
	lab.Namespace
	dir  string
	pods []*pod
}

// pod is a namespace as a network plugin leaves it.
type pod struct {
	lab.Namespace
	world      *world
	peer       string // name of the other end of its NIC
	state, dir string // for phase1
	mount      string // where the namespace is mounted; empty: it has no path
}

// newWorld creates a world with pods.
func (s *scope) newWorld(count int) (w *world, pods []*pod, err error) {
	w = &world{}
	if w.Namespace, err = lab.New(); err != nil {
		return nil, nil, err
	}
	s.atEnd(w.close)
	if w.dir, err = os.MkdirTemp(sandbox.Dir(), "world-"); err != nil {
		return nil, nil, err
	}
	if err := os.Chmod(w.dir, 0o711); err != nil { // the launcher's user enters it
		return nil, nil, err
	}
	pods, err = w.newPods(count)
	return w, pods, err
}

// podNIC configures a pod. The gateways have neighbour entries: otherwise Setup would ask for the IPv6 gateway's MAC
// and wait for the answer.
const podNIC = `link add name eth0 address %[1]v type veth peer name %[2]s netns %[3]s
link set eth0 up
addr add %[4]v/24 brd + dev eth0
addr add %[5]v/64 dev eth0
route add default via %[6]v
route add ::/0 via %[7]v dev eth0
neigh add %[6]v lladdr %[8]v nud reachable dev eth0
neigh add %[7]v lladdr %[8]v nud reachable dev eth0`

// newPods creates pods, and waits until the kernel has done its part.
func (w *world) newPods(count int) ([]*pod, error) {
	first := len(w.pods)
	for range count {
		namespace, err := lab.New()
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("pod%d", len(w.pods)+1)
		p := &pod{Namespace: namespace, world: w, peer: name, state: filepath.Join(w.dir, name), dir: filepath.Join(w.dir, name+"-journal")}
		w.pods = append(w.pods, p)
		err = ip(namespace, podNIC, podMAC, p.peer, path(w.Namespace), pods[0], pods[1], gateways[0], gateways[1], gatewayMAC)
		if err == nil {
			err = ip(w.Namespace, "link set %s up", p.peer)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, p := range w.pods[first:] {
		if err := p.Settle(nic); err != nil {
			return nil, err
		}
	}
	time.Sleep(50 * time.Millisecond) // the kernel's work on new links is done then
	return w.pods[first:], nil
}

// close deletes the pods and waits until the kernel has cleaned them up, which would disturb what is measured next.
func (w *world) close() error {
	for _, p := range w.pods {
		if p.mount != "" {
			unix.Unmount(p.mount, unix.MNT_DETACH)
		}
		p.File.Close()
	}
	err := w.Do(func() error {
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			links, err := os.ReadFile("/proc/thread-self/net/dev")
			left := strings.Count(string(links), ":") - 1 // the loopback stays
			if err != nil || left == 0 {
				return err
			}
			if time.Now().After(end) {
				return fmt.Errorf("%d links stay in the world a minute after their pods", left)
			}
		}
	})
	return errors.Join(err, w.File.Close(), os.RemoveAll(w.dir))
}

// gateway lets the other end of the NIC be the pod's gateways.
func (p *pod) gateway() error {
	return ip(p.world.Namespace, "link set %[1]s address %[2]v\naddr add %[3]v/24 dev %[1]s\naddr add %[4]v/64 dev %[1]s nodad",
		p.peer, gatewayMAC, gateways[0], gateways[1])
}

// mounted gives the namespace a path, as network plugins and "ip netns add" do.
func (p *pod) mounted() error {
	p.mount = p.dir + "-netns"
	if err := os.WriteFile(p.mount, nil, 0o600); err != nil {
		return err
	}
	return unix.Mount(path(p.Namespace), p.mount, "", unix.MS_BIND, "")
}

// statusAtPath opens the namespace by its path and asks for the NIC's status.
func (p *pod) statusAtPath(ctx context.Context) error {
	ns, err := phase1.OpenNetNS(p.mount)
	if err != nil {
		return err
	}
	defer ns.Close()
	n := p.nic()
	n.NetNS = ns
	_, err = n.Status(ctx)
	return err
}

func (p *pod) nic() phase1.NIC { return phase1.NIC{NetNS: p.File, Dir: p.dir, Name: nic} }

func (p *pod) setup(ctx context.Context, spec infra.Spec) (cache.Record, error) {
	spec.State, spec.Owner.Root = p.state, spec.Owner.UID == 0
	return p.nic().Setup(ctx, spec)
}

// journal is the path of what Setup wrote about the pod.
func (p *pod) journal() (string, error) {
	paths, err := filepath.Glob(filepath.Join(p.dir, "*", journalFile))
	if err == nil && len(paths) != 1 {
		err = fmt.Errorf("%d journals below %s", len(paths), p.dir)
	}
	if err != nil {
		return "", err
	}
	return paths[0], nil
}

// path is one by which other programs open a namespace.
func path(n lab.Namespace) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.File.Fd()) }

// ip runs ip(8) on a batch.
func ip(n lab.Namespace, batch string, args ...any) error {
	_, err := n.Run("sh", "-c", "exec ip -batch - <<.\n"+fmt.Sprintf(batch, args...)+"\n.\n")
	return err
}

// feed runs a program on an input that may be longer than an argument can be.
func (p *pod) feed(program, input string) error {
	path := filepath.Join(p.world.dir, "input")
	if err := os.WriteFile(path, []byte(input), 0o600); err != nil {
		return err
	}
	_, err := p.Run("sh", "-c", program+" < "+path)
	return err
}

// build builds programs of folders of the repository, and returns their directory. It is not on a tmpfs, whose pages
// would count as a process's own memory.
func (s *scope) build(folders ...string) (dir string, err error) {
	// The folders may be of other modules than this program.
	root, err := exec.CommandContext(s.ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/guestwire/guestwire").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	if dir, err = os.MkdirTemp("", "guestwire-bench-"); err != nil {
		return "", err
	}
	s.atEnd(func() error { return os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", err
	}
	for _, folder := range folders {
		source := filepath.Join(strings.TrimSpace(string(root)), folder)
		cmd := exec.CommandContext(s.ctx, "go", "build", "-C", source, "-o", filepath.Join(dir, filepath.Base(folder)), ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build %s: %w: %s", folder, err, out)
		}
	}
	return dir, nil
}
