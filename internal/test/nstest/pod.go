package nstest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// The addresses of a pod, of its gateway, and of a host beyond that.
var (
	Pod4, Pod6         = lab.Pod4, lab.Pod6
	Gateway4, Gateway6 = lab.Gateway4, lab.Gateway6
	Beyond4, Beyond6   = lab.Beyond4, lab.Beyond6
)

// LauncherUID owns the taps in tests. No account has this number on purpose. In a user namespace with
// one user it is that user, root; a launcher has no capabilities there either.
var LauncherUID = func() int {
	if sandbox.OneUser() {
		return 0
	}
	return lab.User
}()

// Owner is LauncherUID, and the group of that number.
func Owner() infra.Owner {
	return infra.Owner{UID: uint32(LauncherUID), GID: uint32(LauncherUID), Root: LauncherUID == 0}
}

// OwnerFlags are Owner for guestwire-agent, where group 0 has no name.
func OwnerFlags() []string {
	id := strconv.Itoa(LauncherUID)
	if LauncherUID == 0 {
		return []string{"-uid", id}
	}
	return []string{"-uid", id, "-gid", id}
}

// Network is a pod's namespace, the world at the other end of its veth, and a state directory.
type Network struct {
	Pod, World *Namespace
	State      string
}

// NewWorld makes the two namespaces, with nothing between them yet. Beyond4 and Beyond6 are in the
// world, which forwards.
func NewWorld(t testing.TB) Network {
	t.Helper()
	Need(t)
	n := Network{Pod: New(t, "pod"), World: New(t, "world"), State: Dir(t)}
	if err := n.World.World(); err != nil {
		t.Fatal(err)
	}
	return n
}

// NewNetwork is NewVeth for a test that makes taps.
func NewNetwork(t testing.TB) Network {
	t.Helper()
	Need(t)
	NeedTaps(t)
	return NewVeth(t)
}

// NewVeth creates what a CNI plugin of the usual kind leaves: a veth called eth0, a /24 and a /64,
// default routes, an MTU of 1450.
func NewVeth(t testing.TB) Network {
	t.Helper()
	n := NewWorld(t)
	if err := lab.Veth(n.Pod.Namespace, n.World.Namespace); err != nil {
		t.Fatal(err)
	}
	return n
}

// NewMacvtap creates what a device plugin leaves: a macvtap called eth0, which is down and has no address,
// on a link of the world with the gateway at its other end, with an MTU of 1450.
func NewMacvtap(t testing.TB) Network {
	t.Helper()
	n := NewWorld(t)
	n.World.IP("link add lan type veth peer name lower")
	for _, link := range []string{"lan", "lower"} {
		n.World.IP("link set " + link + " mtu 1450 up")
	}
	n.World.IP("addr add 10.244.1.1/24 dev lan")
	n.World.IP("addr add fd00:244:1::1/64 dev lan nodad")
	n.World.IP("link add link lower name eth0 netns " + n.Pod.Name + " type macvtap mode bridge")
	n.World.Settle("lan")
	return n
}

// Gateway is that of the address's family.
func Gateway(a netip.Addr) netip.Addr {
	if a.Is4() {
		return Gateway4
	}
	return Gateway6
}

// Root returns the repository's directory, which is that of the library's module.
func Root(t testing.TB) string {
	t.Helper()
	return strings.TrimSpace(Run(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/guestwire/guestwire"))
}

// Program returns the path of a program that every user can run. The program comes from GUESTWIRE_BIN
// if that is set, else it is built once from its folder in the repository, such as "examples/guestwire-agent". Program
// waits for the programs that are being started, which have copies of a tap that the test has closed.
func Program(t testing.TB, folder string) string {
	t.Helper()
	lab.AwaitForks()
	programs.Lock()
	defer programs.Unlock()
	name := filepath.Base(folder)
	switch folder {
	case "examples/guestwire":
		name = "guestwire" // what a CNI list calls it
	case "examples/guestwire-node":
		name = "guestwire-node"
	}
	path := filepath.Join(programs.dir, name)
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "guestwire-programs-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		programs.dir, path = dir, filepath.Join(dir, name)
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if dir := os.Getenv("GUESTWIRE_BIN"); dir != "" {
		Run(t, "cp", filepath.Join(dir, name), path)
	} else {
		// A folder is built in its module. An image without a C library runs what is linked statically.
		Run(t, "env", "CGO_ENABLED=0", "go", "build", "-C", filepath.Join(Root(t), folder), "-o", path, ".")
	}
	return path
}

// programs are in a directory that Main removes.
var programs struct {
	sync.Mutex
	dir string
}

// Serve runs the launcher as LauncherUID, or another user, without capabilities in the pod's
// namespace.
func (n Network) Serve(t testing.TB, uid int) *Process {
	t.Helper()
	p := n.Pod.Start(uid, Program(t, "examples/guestwire-launcher"), "serve", "-state", n.State)
	// A launcher that is stopped before it listens for signals ends by the signal, which Stop takes for a failure.
	Eventually(t, func() error {
		select {
		case <-p.ended:
			return nil
		default:
		}
		if !strings.Contains(p.Output.String(), "event=ready") {
			return fmt.Errorf("the launcher is not ready: %s", p.Output.String())
		}
		return nil
	})
	return p
}

// NeedTaps is for tests that wire the pod.
func (n Network) NeedTaps() {
	n.Pod.t.Helper()
	NeedTaps(n.Pod.t)
}
