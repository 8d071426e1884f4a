// Package depstest keeps packages from linking what they must not.
package depstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/guestwire/guestwire"

type goPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string // of tests in the package
	XTestImports []string // of tests beside the package
	Deps         []string // of all imports, tests aside
}

// goCommand is a call of the go command in the repository's root, with its go.work. GOWORK=off of the caller, and
// -mod=mod in GOFLAGS, which a go.work excludes, do not count.
func goCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	flags := slices.DeleteFunc(strings.Fields(os.Getenv("GOFLAGS")), func(f string) bool { return strings.HasPrefix(f, "-mod=") })
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"), "GOFLAGS="+strings.Join(flags, " "))
	return cmd
}

// everything are the packages of all rooms. A pattern of import paths would match those of a module cache below the
// root.
var everything = []string{"./...", "./examples/...", "./examples/kubevirt/...", "./internal/rig/..."}

// list asks the go command.
func list(t *testing.T, patterns ...string) []goPackage {
	t.Helper()
	fields := "ImportPath,Imports,TestImports,XTestImports,Deps"
	out, err := goCommand(t, append([]string{"list", "-json=" + fields}, patterns...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("go list: %v: %s", err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	var packages []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); err == io.EOF {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// within reports whether the package is the tree's root or below it.
func within(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }

// privileged is what only Phase1 needs. A guest may take over the process of Phase2: then it
// can call what that process links, and nothing else.
var privileged = map[string]string{
	"github.com/vishvananda":         "Phase2 has no capability that netlink needs",
	"github.com/google/nftables":     "Phase2 has no capability that nftables needs",
	"github.com/coreos/go-iptables":  "it starts processes",
	"github.com/mdlayher/netlink":    "Phase2 has no capability that netlink needs",
	"github.com/prometheus":          "metrics are the exporter's",
	"os/exec":                        "Phase2 starts no process",
	module + "/infra":                "the phases meet in the record alone",
	module + "/phase1":               "the phases meet in the record alone",
	module + "/internal/kernel":      "only Phase1 changes a kernel",
	module + "/internal/netlink":     "Phase2 has no capability that netlink needs",
	module + "/internal/nft":         "only Phase1 makes rules",
	module + "/internal/child":       "only Phase1 needs a child process",
	module + "/internal/firewall":    "only Phase1 makes rules",
	module + "/internal/netstate":    "only Phase1 plans",
	module + "/internal/guestfilter": "only Phase1 makes rules",
	module + "/internal/lease":       "only Phase1 plans",
	module + "/internal/policy":      "only Phase1 plans",
	module + "/internal/router":      "only Phase1 makes rules",
	module + "/internal/wiring":      "only Phase1 plans",
	module + "/internal/netns":       "Phase2 works in the namespace it was started in",
}

// pure is what a package must not link that computes and does nothing else.
var pure = map[string]string{
	"github.com/vishvananda":        "internal/kernel talks to the kernel",
	"github.com/google/nftables":    "internal/kernel talks to the kernel",
	"github.com/coreos/go-iptables": "internal/kernel talks to the kernel",
	"github.com/mdlayher":           "internal/kernel talks to the kernel",
	"golang.org/x/sys":              "the package makes no system call",
	"os/exec":                       "the package starts no process",
	"net":                           "the package opens no socket",
	module + "/phase1":              "phase1 calls the package",
	module + "/internal/kernel":     "internal/kernel talks to the kernel",
	module + "/internal/netlink":    "internal/kernel talks to the kernel",
	module + "/internal/nft":        "internal/kernel talks to the kernel",
	module + "/internal/child":      "the package starts no process",
	module + "/internal/netns":      "the package enters no namespace",
}

// planning is the fence of the planner. It encodes DHCP options, to know which of them do not fit into a message. The
// addresses of insomniacslk/dhcp are those of package net.
func planning() map[string]string {
	fence := maps.Clone(pure)
	delete(fence, "net")
	delete(fence, "golang.org/x/sys")
	return fence
}

// answering is the fence of the DNS proxy, which reads what the guest and the network send.
func answering() map[string]string {
	fence := maps.Clone(privileged)
	for _, tree := range []string{module + "/phase2", module + "/dhcp", module + "/domain", "libvirt.org", "github.com/fsnotify", "github.com/insomniacslk", "github.com/mdlayher"} {
		fence[tree] = "the proxy is a process of its own, beside each VM"
	}
	return fence
}

// pinning is the fence of the process that pins for the DNS proxy.
var pinning = map[string]string{
	"golang.org/x/net/dns": "the proxy reads what the guest and the network send",
	module + "/phase2":     "the proxy reads what the guest and the network send",
	module + "/dhcp":       "the launcher serves",
}

// withoutLibvirt is what the packages for other VMMs do not link.
var withoutLibvirt = map[string]string{
	"os/exec":     "the launcher starts the VMM",
	"libvirt.org": "a launcher without libvirt does not link it",
}

// withoutExec is the fence of a program that may start processes: examples/guestwire-launcher, whose verb qemu runs
// QEMU. A guest that takes this process over can start programs, but gains nothing by that: QEMU, which a guest takes
// over first, has the same user and can do the same. phase2 and what is below start nothing, for launchers that forbid
// exec.
func withoutExec(fence map[string]string) map[string]string {
	fence = maps.Clone(fence)
	delete(fence, "os/exec")
	return fence
}

// lasting is the fence of examples/guestwire-launcher, which lives as long as the VM: the code that a program links is
// in memory.
func lasting() map[string]string {
	fence := withoutExec(privileged)
	for _, tree := range []string{"github.com/mdlayher", "github.com/spf13", "golang.org/x/net/bpf", "golang.org/x/net/http", "golang.org/x/net/idna", "golang.org/x/net/ipv4", "golang.org/x/net/ipv6", "golang.org/x/text", "crypto", "math/big", "regexp", "text/template"} {
		fence[tree] = "it takes memory beside each VM"
	}
	return fence
}

// small is what the agent and the CNI plugin do not link: an engine starts them several times for each pod.
var small = map[string]string{
	"github.com/prometheus":                         "metrics are the exporter's",
	"github.com/russross":                           "its start takes a tenth of the agent's",
	"github.com/containernetworking/cni/libcni":     "engines run lists, a plugin does not",
	"github.com/containernetworking/cni/pkg/invoke": "engines run plugins, this plugin runs none",
	"go.opentelemetry.io":                           "engines trace",
	module + "/phase2":                              "the launcher serves",
	module + "/dhcp":                                "the launcher serves",
}

// withoutPhase1 is what the programs of a node need not link that only read annotations.
var withoutPhase1 = map[string]string{
	"github.com/vishvananda":         "the package changes no kernel",
	"github.com/google/nftables":     "the package changes no kernel",
	"github.com/containernetworking": "the package knows names, and no protocol of an engine",
	"os/exec":                        "the package starts no process",
	module + "/phase1":               "examples/guestwire-node reads annotations, and wires nothing",
	module + "/internal/kernel":      "examples/guestwire-node reads annotations, and wires nothing",
}

// TestLinks: nothing of the packages on the left links what is on the right.
func TestLinks(t *testing.T) {
	kubevirt := withoutExec(privileged)
	kubevirt[examples+"/commandline"] = "who copies the program does not pay for a command line"
	for pkg, fence := range map[string]map[string]string{
		"/phase2":                        privileged,
		"/phase2/names":                  answering(),
		"/phase2/vmm":                    withoutExec(privileged),
		"/phase1/pins":                   pinning,
		"/dhcp":                          privileged,
		"/domain":                        privileged,
		"/domain/qemu":                   withoutLibvirt,
		"/domain/cloudhypervisor":        withoutLibvirt,
		"/domain/crosvm":                 withoutLibvirt,
		"/domain/firecracker":            withoutLibvirt,
		"/domain/passt":                  withoutLibvirt,
		"/cache":                         privileged,
		"/examples/guestwire-launcher":   lasting(),
		"/examples/kubevirt":             kubevirt,
		"/examples/guestwire-agent":      small,
		"/examples/guestwire":            small,
		"/examples/guestwire/podsandbox": withoutPhase1,
		"/phase1":                        {"github.com/prometheus": "metrics are the exporter's, and importers do not pay for them"},
		"/infra":                         pure,
		"/internal/netstate":             pure,
		"/internal/compare":              pure,
		"/internal/lease":                pure,
		"/internal/guestfilter":          pure,
		"/internal/policy":               pure,
		"/internal/router":               pure,
		"/internal/servers":              pure,
		"/internal/undo":                 pure,
		"/internal/wiring":               planning(),
		"/guestconfig":                   pure,
	} {
		t.Run(strings.TrimPrefix(pkg, "/"), func(t *testing.T) {
			for _, p := range list(t, module+pkg) {
				if !slices.Contains(p.Deps, module+"/cache") && pkg != "/cache" && pkg != "/phase2/vmm" {
					t.Errorf("%s does not link cache: has go list seen it?", p.ImportPath)
				}
				for _, dep := range p.Deps {
					for tree, why := range fence {
						if dep == tree || tree != "net" && within(dep, tree) {
							t.Errorf("%s links %s: %s", p.ImportPath, dep, why)
						}
					}
				}
			}
		})
	}
}

// TestPure: what a plan is computed with imports nothing by which a kernel, a file or a clock can be reached.
// What the packages link in addition comes by way of cache, which reads and writes records, and of fmt.
func TestPure(t *testing.T) {
	for _, p := range list(t, module+"/guestconfig", module+"/infra", module+"/domain/qemu", module+"/domain/cloudhypervisor", module+"/domain/crosvm", module+"/domain/firecracker", module+"/domain/passt", module+"/domain/internal/refusal", module+"/internal/eui64", module+"/internal/ip", module+"/internal/privatenet", module+"/internal/strictjson", module+"/internal/syntax", module+"/internal/frame", module+"/internal/firewall", module+"/internal/netstate", module+"/internal/compare", module+"/internal/lease", module+"/internal/guestfilter", module+"/internal/policy", module+"/internal/router", module+"/internal/servers", module+"/internal/undo", module+"/internal/wiring") {
		for _, imported := range p.Imports {
			for _, tree := range []string{"os", "io/ioutil", "time", "syscall", "unsafe", "log", "runtime", "math/rand", "crypto/rand", "golang.org/x"} {
				if within(imported, tree) {
					t.Errorf("%s imports %s: it is a function of its arguments", p.ImportPath, imported)
				}
			}
			if imported == "net" {
				t.Errorf("%s imports net: net/netip has the values", p.ImportPath)
			}
		}
	}
}

// TestKernelAlone: two packages speak netlink by the socket of a third, and one that creates the namespaces of tests.
func TestKernelAlone(t *testing.T) {
	may := []string{module + "/internal/kernel", module + "/internal/netlink", module + "/internal/nft", module + "/internal/test/lab"}
	users := 0
	for _, p := range list(t, everything...) {
		if within(p.ImportPath, laboratory) {
			continue
		}
		for _, imported := range p.Imports {
			for _, tree := range []string{"github.com/vishvananda/netlink", "github.com/google/nftables", "github.com/mdlayher/netlink", "github.com/coreos/go-iptables"} {
				if !within(imported, tree) {
					continue
				}
				users++
				if !slices.Contains(may, p.ImportPath) {
					t.Errorf("%s imports %s: internal/kernel is the one that speaks netlink", p.ImportPath, imported)
				}
			}
		}
	}
	if users == 0 {
		t.Error("no package imports netlink: has go list seen internal/kernel?")
	}
}

// TestDNSAlone: one package reads messages of DNS, that of the proxy without privileges. phase1 links none of them.
func TestDNSAlone(t *testing.T) {
	var users []string
	for _, p := range list(t, everything...) {
		if within(p.ImportPath, laboratory) {
			continue
		}
		if slices.ContainsFunc(p.Imports, func(i string) bool {
			return within(i, "golang.org/x/net/dns") || within(i, "github.com/miekg/dns")
		}) {
			users = append(users, strings.TrimPrefix(p.ImportPath, module))
		}
		for _, dep := range p.Deps {
			if !within(p.ImportPath, module+"/phase2/names") && !slices.Contains(p.Deps, module+"/phase2/names") && (within(dep, "golang.org/x/net/dns") || within(dep, "github.com/miekg/dns")) {
				t.Errorf("%s links %s, and not by phase2/names", p.ImportPath, dep)
			}
		}
	}
	if want := []string{"/phase2/names"}; !slices.Equal(users, want) {
		t.Errorf("messages of DNS are read by %q, want %q", users, want)
	}
}

// TestChildAlone: two packages use child processes that are copies of this one. The package that makes them needs no
// other package than internal/tap, whose ioctls it makes, and which names the process that has a tap open.
func TestChildAlone(t *testing.T) {
	const child, tap, holders, unix = module + "/internal/child", module + "/internal/tap", module + "/internal/holders", "golang.org/x/sys/unix"
	for pkg, may := range map[string][]string{child: {tap, unix}, tap: {holders, unix}, holders: {unix}} {
		for _, imported := range list(t, pkg)[0].Imports {
			host, _, _ := strings.Cut(imported, "/")
			standard := !strings.Contains(host, ".") && imported != "net" && imported != "os/exec" && imported != "os/signal"
			if !standard && !slices.Contains(may, imported) {
				t.Errorf("%s imports %s: want %q and the standard library, without what starts threads and processes", pkg, imported, may)
			}
		}
	}
	var users []string
	for _, p := range list(t, everything...) {
		if slices.Contains(p.Imports, child) {
			users = append(users, strings.TrimPrefix(p.ImportPath, module))
		}
	}
	if want := []string{"/internal/kernel", "/phase1"}; !slices.Equal(users, want) {
		t.Errorf("internal/child is imported by %q, want %q", users, want)
	}
}

// bottom are the internal packages below cache and infra: what both need, or phase1 as well, and what is
// no part of their API. They link nothing else of the module but ip.
var bottom = map[string]string{
	"/internal/eui64":      "pure: addresses of MACs",
	"/internal/ip":         "pure: the version of IP",
	"/internal/privatenet": "pure: addresses behind a masquerade",
	"/internal/statefile":  "files in one directory, which os.Root does not let it leave",
	"/internal/strictjson": "pure: JSON to values",
	"/internal/syntax":     "pure: the form of names",
}

// TestLayers: what is below does not know what is above.
func TestLayers(t *testing.T) {
	above := map[string][]string{
		"/cache":                  {"/infra", "/phase1", "/phase2", "/dhcp", "/domain", "/internal"},
		"/infra":                  {"/phase1", "/phase2", "/dhcp", "/domain", "/internal"},
		"/internal/firewall":      {"/cache", "/infra", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/netstate":      {"/internal/compare", "/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/compare":       {"/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/guestfilter":   {"/internal/lease", "/internal/compare", "/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/lease":         {"/internal/guestfilter", "/internal/compare", "/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/policy":        {"/internal/netstate", "/internal/guestfilter", "/internal/lease", "/internal/compare", "/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/router":        {"/internal/lease", "/internal/compare", "/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/servers":       {"/infra", "/internal/lease", "/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain", "/guestconfig"},
		"/internal/undo":          {"/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/wiring":        {"/internal/undo", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/child":         {"/cache", "/infra", "/internal/kernel", "/internal/netns", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/netlink":       {"/cache", "/infra", "/internal/netstate", "/internal/firewall", "/internal/kernel", "/internal/nft", "/internal/netns", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/nft":           {"/internal/compare", "/internal/wiring", "/internal/kernel", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/kernel":        {"/internal/compare", "/internal/wiring", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/dhcp":                   {"/phase2", "/domain"},
		"/domain":                 {"/phase2", "/dhcp", "/domain/qemu", "/domain/cloudhypervisor", "/domain/crosvm", "/domain/firecracker", "/domain/passt"},
		"/domain/qemu":            {"/phase2", "/dhcp"},
		"/domain/cloudhypervisor": {"/phase2", "/dhcp"},
		"/domain/crosvm":          {"/phase2", "/dhcp"},
		"/domain/firecracker":     {"/phase2", "/dhcp"},
		"/domain/passt":           {"/phase2", "/dhcp"},
		"/guestconfig":            {"/infra", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/phase1":                 {"/phase1/launch", "/phase1/pins", "/phase2", "/dhcp", "/domain", "/guestconfig"},
		"/phase1/pins":            {"/phase2", "/dhcp", "/domain", "/guestconfig"},
		"/phase2/names":           {"/infra", "/phase1", "/phase2", "/dhcp", "/domain", "/guestconfig"},
		"/internal/pinmessage":    {"/cache", "/infra", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/internal/rate":          {""},
		"/internal/command":       {""},
		"/internal/resolvconf":    {"/infra", "/phase1", "/phase2", "/dhcp", "/domain"},
		"/phase1/launch":          {"/phase1", "/phase2", "/dhcp", "/domain", "/guestconfig", "/internal/wiring", "/internal/kernel"},

		"/domain/internal/refusal": {"/phase2", "/dhcp", "/domain"},
		"/internal/frame":          {"/infra", "/phase1", "/phase2", "/dhcp", "/domain", "/internal/kernel", "/internal/firewall"},
	}
	for pkg := range bottom {
		above[pkg] = []string{""} // all of the module
	}
	for pkg, upper := range above {
		for _, p := range list(t, module+pkg) {
			for _, dep := range p.Deps {
				if name := strings.TrimPrefix(dep, module); bottom[name] != "" && (bottom[pkg] == "" || name == "/internal/ip") {
					continue
				}
				for _, u := range upper {
					if within(dep, module+u) {
						t.Errorf("%s links %s, which is above it", p.ImportPath, dep)
					}
				}
			}
		}
	}
}
