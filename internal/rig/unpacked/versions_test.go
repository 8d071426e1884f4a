package unpacked_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestVersions: the documents name the versions of the programs with which the tests run.
func TestVersions(t *testing.T) {
	const root = "../../../"
	documents := golden.Documents(t, root)
	// Pinned in a file of the repository.
	pinned := func(file, before string) func(t *testing.T) string {
		return func(t *testing.T) string {
			text, err := os.ReadFile(root + file)
			_, version, ok := strings.Cut(string(text), before)
			if err != nil || !ok {
				t.Fatalf("%s has no %q: %v", file, before, err)
			}
			return strings.TrimPrefix(strings.Fields(version)[0], "v")
		}
	}
	for _, p := range []struct {
		name     string
		pattern  string                      // of the version's place in a document; empty: after the name
		versions []func(t *testing.T) string // those that run
		others   bool                        // the documents also name versions that do not run
	}{
		{name: "Go", versions: versions(pinned("go.mod", "\ngo ")), others: true},
		{name: "Kubernetes", versions: versions(pinned("internal/rig/kubernetes/parts/go.mod", "k8s.io/kubernetes v"))},
		{name: "containerd", versions: versions(pinned("internal/rig/kubernetes/install.sh", "containerd="), debian("containerd", "containerd")), others: true},
		{name: "CRI-O", versions: versions(pinned("internal/rig/kubernetes/install.sh", "crio=")), others: true},
		{name: "runc", versions: versions(pinned("internal/rig/kubernetes/install.sh", "runc="), debian("containerd", "runc")), others: true},
		{name: "firecracker-go-sdk", versions: versions(pinned("internal/rig/go.mod", "firecracker-go-sdk v"))},
		{name: "Multus", versions: versions(pinned("internal/rig/go.mod", "multus-cni.v4 v"))},
		{name: "go-cni", versions: versions(pinned("internal/rig/go.mod", "containerd/go-cni v"))},
		{name: "flannel", pattern: `flannel's CNI plugin \((\S+),`, versions: versions(pinned("internal/rig/podnet/install.sh", "meta/flannel@"))},
		{name: "vlanTrunk", pattern: "`vlanTrunk`\\s+\\((\\S+)\\)", versions: versions(pinned("internal/rig/podnet/install.sh", "plugins/plugins@"))},
		{name: "CNI's current plugins", pattern: `in the rows \*current\* (\S+),`, versions: versions(pinned("internal/rig/podnet/install.sh", "plugins/plugins@"))},
		{name: "CNI's plugins", pattern: `reference plugins \(Debian's, (\S+);`, versions: versions(installed("containernetworking-plugins"))},
		{name: "Open vSwitch and OVN", pattern: `\(Debian's, (\S+) and `, versions: versions(debian("openvswitch", "openvswitch-switch"))},
		{name: "OVN", pattern: `\(Debian's, \S+ and (\S+),|OVN (\d\S+)`, versions: versions(debian("openvswitch", "ovn-common"))},
		{name: "QEMU", versions: versions(installed("qemu-system-x86"), debian("trixie", "qemu-system-x86"))},
		{name: "libvirt", versions: versions(installed("libvirt-daemon"), backport)},
		{name: "nft", versions: versions(installed("nftables"), debian("trixie", "nftables"))},
		{name: "iptables", versions: versions(debian("trixie", "iptables"))},
		{name: "iproute2", versions: versions(debian("trixie", "iproute2"))},
		{name: "podman", versions: versions(debian("podman", "podman"))},
		{name: "systemd-networkd", versions: versions(debian("managers", "systemd"), debian("debian13", "systemd"))},
		{name: "dhcpcd", versions: versions(debian("dhcpcd", "dhcpcd-base"), debian("debian13", "dhcpcd-base"))},
		{name: "NetworkManager", versions: versions(debian("managers", "network-manager"))},
		{name: "connman", versions: versions(debian("connman", "connman"))},
		{name: "cloud-init", versions: versions(debian("cloudinit", "cloud-init"), debian("debian13", "cloud-init"))},
		{name: "netplan", versions: versions(debian("cloudinit", "netplan.io"), debian("debian13", "netplan.io"))},
		{name: "klibc", versions: versions(debian("klibc", "klibc-utils"), debian("debian13", "klibc-utils"))},
		{name: "OVMF", versions: versions(debian("firmware", "ovmf"))},
	} {
		t.Run(p.name, func(t *testing.T) {
			var run []string
			for _, version := range p.versions {
				run = append(run, version(t))
			}
			if p.pattern == "" {
				p.pattern = `\b` + p.name + ` v?(\d[\w.]*)`
			}
			named := map[string]bool{}
			for path, text := range documents {
				for _, m := range regexp.MustCompile(p.pattern).FindAllStringSubmatch(text, -1) {
					version := strings.TrimRight(strings.Join(m[1:], ""), ".,;:)")
					i := slices.IndexFunc(run, func(r string) bool { return r == version || strings.HasPrefix(r, version+".") })
					if i >= 0 {
						named[run[i]] = true
					} else if !p.others {
						t.Errorf("%s: %q, and %q run", path, m[0], run)
					}
				}
			}
			for _, version := range run {
				if !named[version] {
					t.Errorf("no document names %s %s", p.name, version)
				}
			}
		})
	}
}

func versions(all ...func(t *testing.T) string) []func(t *testing.T) string { return all }

// upstream is the part of a version of Debian that the program itself has.
var upstream = regexp.MustCompile(`^(?:\d+:)?([\d.]+)`)

// installed is the version of an installed package.
func installed(name string) func(t *testing.T) string {
	return func(t *testing.T) string {
		out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", name).Output()
		m := upstream.FindSubmatch(out)
		if err != nil || m == nil {
			nstest.Skip(t, "the package "+name+" is not installed")
		}
		return string(m[1])
	}
}

// debian is the version of a package that an install.sh has unpacked, by its changelog.
func debian(dir, name string) func(t *testing.T) string {
	return func(t *testing.T) string {
		files, _ := filepath.Glob(unpacked.Path(dir, "usr/share/doc", name, "changelog.Debian*.gz"))
		if len(files) == 0 {
			nstest.Skip(t, "the package "+name+" is not in "+unpacked.Path(dir))
		}
		f, err := os.Open(files[0])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		text, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 200)
		n, err := io.ReadFull(text, head)
		_, version, ok := strings.Cut(string(head[:n]), " (")
		m := upstream.FindStringSubmatch(version)
		if err != nil || !ok || m == nil {
			t.Fatalf("%s begins with %q, %v", files[0], head[:n], err)
		}
		return m[1]
	}
}

// backport is the version of the libvirt of Debian's backports, by its library, such as libvirt.so.0.11003.0.
func backport(t *testing.T) string {
	files, _ := filepath.Glob(unpacked.Path("libvirt/usr/lib/x86_64-linux-gnu/libvirt.so.0.*"))
	if len(files) == 0 {
		nstest.Skip(t, "no libvirt in "+unpacked.Path("libvirt"))
	}
	number, err := strconv.Atoi(strings.Split(filepath.Base(files[0]), ".")[3])
	if err != nil {
		t.Fatal(files, err)
	}
	return fmt.Sprintf("%d.%d", number/1000, number%1000)
}
