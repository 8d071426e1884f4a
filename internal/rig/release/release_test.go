// Package release_test judges the packages of a release: make release-check.
package release_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

func TestMain(m *testing.M) {
	leak.Allow(15 * time.Minute) // a command works on the roots of another architecture, which are emulated
	nstest.Main(m)
}

// made is the directory with the release that make release has written, or the test is skipped.
func made(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("GUESTWIRE_RELEASE")
	if dir == "" {
		t.Skip("make release-check builds the packages, and calls this test")
	}
	return dir
}

func one(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s: %q, %v", pattern, paths, err)
	}
	return paths[0]
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestReproducible: a clone in another directory gives the same octets, on a machine of another name, for a user with
// another umask, time zone and processor.
func TestReproducible(t *testing.T) {
	dir := made(t)
	clone, again := filepath.Join(t.TempDir(), "clone"), filepath.Join(t.TempDir(), "again")
	root := strings.TrimSpace(output(t, "git", "rev-parse", "--show-toplevel"))
	output(t, "git", "clone", "--quiet", root, clone)
	output(t, "unshare", "--uts", "sh", "-c", `hostname elsewhere && umask 077 && TZ=Asia/Tokyo GOAMD64=v3 exec "$@"`, "sh",
		filepath.Join(clone, "internal/rig/release/release.sh"), os.Getenv("GUESTWIRE_NFPM"), os.Getenv("GUESTWIRE_CYCLONEDX"), again)
	want, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if head := strings.TrimSpace(output(t, "git", "-C", clone, "rev-parse", "--short=12", "HEAD")); bytes.Contains(want, []byte("v0.0.0-")) && !bytes.Contains(want, []byte(head)) {
		t.Fatalf("%s is of another commit than %s: commit nothing while make release-check runs", dir, head)
	}
	have, err := os.ReadFile(filepath.Join(again, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) || bytes.Count(have, []byte("\n")) != 16 {
		t.Errorf("the second time\n%s\nthe first time\n%s", have, want)
	}
	output(t, "sh", "-c", `cd "$0" && sha256sum --check --quiet SHA256SUMS`, dir)

	// With a tag, packages and programs have its name.
	output(t, "git", "-C", clone, "tag", "v0.98.7")
	output(t, filepath.Join(clone, "internal/rig/release/release.sh"), os.Getenv("GUESTWIRE_NFPM"), os.Getenv("GUESTWIRE_CYCLONEDX"), again)
	root = t.TempDir()
	output(t, "dpkg-deb", "-x", one(t, again+"/guestwire_0.98.7_amd64.deb"), root)
	if said := output(t, filepath.Join(root, "usr/bin/guestwire-agent"), "version"); !strings.HasPrefix(said, "guestwire-agent v0.98.7, ") {
		t.Errorf("of the tag v0.98.7: %s", said)
	}
}

// typed is what is typed where the package is installed: a namespace's NIC is wired, looked at, and given back.
const typed = `set -e
ip netns add pod
trap 'ip netns del pod' EXIT
ip -n pod link add eth0 type veth peer name peer0
ip -n pod addr add 10.0.0.2/24 dev eth0
ip -n pod link set eth0 up
mkdir -p /run/guestwire
guestwire-agent plan -netns /run/netns/pod -nic eth0 -binding auto -uid 107
guestwire-agent setup -netns /run/netns/pod -nic eth0 -binding auto -uid 107 -state /run/guestwire/vm1
guestwire-agent list
guestwire-agent exec -netns /run/netns/pod -uid 107 -- guestwire-launcher xml -state /run/guestwire/vm1
guestwire-exporter
! guestwire-agent setpu || exit 1
guestwire-agent teardown -netns /run/netns/pod -nic eth0
echo '{"cniVersion": "1.0.0", "name": "a"}' | CNI_COMMAND=VERSION /usr/lib/cni/guestwire
mkdir -p /tmp/cni
guestwire-node install -cni-conf '' -cni-bin /tmp/cni
cmp /tmp/cni/guestwire /usr/lib/cni/guestwire
cmp /tmp/cni/guestwire-agent /usr/bin/guestwire-agent
# What help names as a file is there.
for program in guestwire-agent guestwire-launcher guestwire-exporter guestwire-node; do
	$program help
	for verb in $($program help | sed -n "s/^  \([a-z]*\)  *[a-z].*/\1/p"); do $program help $verb; done
done >/tmp/help
grep -oE '\<(docs|examples)/[[:alnum:]./-]*[[:alnum:]]' /tmp/help >/tmp/named
for path in $(cat /tmp/named); do [ -e "/usr/share/doc/guestwire/$path" ] || { echo "help names $path"; exit 1; }; done
grep -x docs/reference/configuration.md /tmp/named
grep -x examples/kubernetes /tmp/named
man -P cat guestwire-agent guestwire-launcher guestwire-exporter guestwire-node
bash -c '. /usr/share/bash-completion/bash_completion; . /usr/share/bash-completion/completions/guestwire-agent; complete -p guestwire-agent'
systemd-analyze verify /usr/lib/systemd/system/guestwire*
rm -r /run/guestwire /run/guestwire.lock`

// units starts each unit of the package, also for a namespace whose name has a hyphen, as all of CNI's have. A program
// stands for QEMU, which the machine has not: as QEMU it answers its monitor, and ends well by SIGTERM.
const units = `set -e
cat >/usr/bin/qemu-system-x86_64 <<'END'
#!/bin/bash
echo "QEMU: $*"
[[ "$*" =~ monitor,fd=([0-9]+) ]] && echo '{"QMP": {}}' >&"${BASH_REMATCH[1]}"
trap "exit 0" TERM
sleep infinity &
wait
END
chmod 755 /usr/bin/qemu-system-x86_64
long=$(printf 'a%.0s' {1..200})
for name in my-vm-1 vm2 my.vm $long; do
	ip netns add $name
	ip -n $name link add eth0 type veth peer name peer0
	ip -n $name addr add 10.0.0.2/24 dev eth0
	ip -n $name link set eth0 up
done
mkdir -p /etc/guestwire /var/lib/prometheus/node-exporter
printf 'OWNER=107\nVERB=qemu\nCOMMAND=-- qemu-system-x86_64 -m 1G -display none /disk.img\n' >/etc/guestwire/my-vm-1.env
echo vm-user:x:1234:1234::/:/bin/false >>/etc/passwd
printf '{"binding": {"masquerade": {"ports": ["80"]}}, "mtu": 1400, "egress": ["refuse all"], "names": ["a.example = 192.0.2.1"]}' >/etc/guestwire/vm2.json
printf 'OWNER=vm-user\nFLAGS=-config /etc/guestwire/vm2.json -groups video\n' >/etc/guestwire/vm2.env
for name in my.vm $long; do printf 'OWNER=107\nFLAGS=-binding bridge\n' >/etc/guestwire/$name.env; done
systemctl start guestwire@my-vm-1 guestwire@vm2 guestwire@my.vm guestwire@$long
guestwire-agent list >/list
grep ' redirect .* VMM, responder .*/run/guestwire/my-vm-1$' /list
grep " masquerade .* responder .*1234.*/run/guestwire/vm2\$" /list
grep ' bridge .* responder .*/run/guestwire/my.vm$' /list
grep " bridge .* responder .*/run/guestwire/$long\$" /list
guestwire-agent status -state /run/guestwire/vm2 | grep 'MTU 1400'
` + proxies + `
answers vm2 # by the proxy of guestwire@vm2
systemctl stop guestwire@my.vm guestwire@$long
for name in my.vm $long; do ip netns del $name; rm /etc/guestwire/$name.env; done
cat /list
journalctl --no-pager -u guestwire@my-vm-1
printf 'OWNER=107\n' >/etc/guestwire/none.env
! systemctl start guestwire@none || exit 1

# guestwire-names serves what is wired otherwise, with guestwire@ beside it, and its end is that of its proxies.
systemctl start guestwire-names
systemctl is-active guestwire-names
ip netns add wired
ip -n wired link add eth0 type veth peer name peer0
ip -n wired addr add 10.0.0.2/24 dev eth0
ip -n wired link set eth0 up
guestwire-agent setup -netns /run/netns/wired -nic eth0 -config /etc/guestwire/vm2.json -uid 107 -state /run/guestwire/wired
answers wired
answers vm2
systemctl stop guestwire-names
[ -z "$(ip netns pids wired)" ]
answers vm2
systemctl start guestwire-names
answers wired
guestwire-agent teardown -netns /run/netns/wired -nic eth0
gone wired
systemctl stop guestwire-names
ip netns del wired

# The start fails, and the journal has the reason, wherever the fault is.
fails() { # NAME REASON LINES [final]: no other try
	printf "$3" >/etc/guestwire/$1.env
	! systemctl start guestwire@$1 || { echo "guestwire@$1 starts without a word"; exit 1; }
	journalctl --sync
	journalctl --no-pager -u guestwire@$1 | grep -F "$2" || { journalctl --no-pager -u guestwire@$1; exit 1; }
	[ -z "${4-}" ] || [ "$(systemctl show -P SubState guestwire@$1)" = failed ] || { systemctl show guestwire@$1; exit 1; }
	systemctl stop guestwire@$1
	systemctl reset-failed
}
ip netns add bad
ip -n bad link add eth0 type veth peer name peer0
ip -n bad addr add 10.0.0.2/24 dev eth0
! systemctl start guestwire@bad || exit 1 # no file says who runs the guest
journalctl --sync
journalctl --no-pager -u guestwire@bad | grep -F 'OWNER= in /etc/guestwire/NAME.env'
systemctl reset-failed
fails bad 'OWNER= in /etc/guestwire/NAME.env' 'NIC=eth0\n' final
fails bad '"no-one" is no user of this machine' 'OWNER=no-one\n' final
fails bad 'open /absent.json' 'OWNER=107\nFLAGS=-config /absent.json\n'
fails bad 'eth7' 'OWNER=107\nNIC=eth7\n'
fails bad 'open /absent' 'OWNER=107\nCOMMAND=-resolv-conf /absent\n'
fails bad 'cat: invalid option' 'OWNER=107\nVERB=qemu\nCOMMAND=-- cat /disk.img\n'
ip netns del bad
systemctl start guestwire-exporter.service guestwire-forget.service
grep 'guestwire_wired_nics 2' /var/lib/prometheus/node-exporter/guestwire.prom

# Debian gives /var/lib/prometheus to prometheus. That user puts another directory in the place of node-exporter, with links to a file
# of root's, and then a link to a directory of root's.
echo "root's" >/victim
chown 107 /var/lib/prometheus
as() { setpriv --reuid=107 --clear-groups "$@"; }
as mv /var/lib/prometheus/node-exporter /var/lib/prometheus/moved
as mkdir /var/lib/prometheus/node-exporter
for name in guestwire.prom guestwire.prom.new .guestwire.prom.new; do
	as ln -s /victim /var/lib/prometheus/node-exporter/$name
done
systemctl start guestwire-exporter.service
test "$(cat /victim) $(stat -c %u:%a /victim)" = "root's 0:644"
test "$(stat -c %u:%a:%F /var/lib/prometheus/node-exporter/guestwire.prom)" = '107:644:regular file'
as rm -r /var/lib/prometheus/node-exporter
as ln -s /etc /var/lib/prometheus/node-exporter
! systemctl start guestwire-exporter.service || exit 1
! ls /etc/guestwire.prom || exit 1
journalctl --sync
journalctl --no-pager -u guestwire-exporter | grep 'name the directory that it leads to'
systemctl reset-failed
as rm /var/lib/prometheus/node-exporter
as mv /var/lib/prometheus/moved /var/lib/prometheus/node-exporter
rm /victim
systemctl enable --now guestwire-exporter.timer guestwire-forget.timer guestwire@vm2
systemctl is-active guestwire-exporter.timer guestwire-forget.timer
systemctl disable --now guestwire-exporter.timer guestwire-forget.timer guestwire@vm2
systemctl stop guestwire@my-vm-1
! guestwire-agent list | grep eth0 || exit 1
systemctl list-units --failed --plain --no-legend 'guestwire*'
sed -i /^vm-user:/d /etc/passwd
ip netns del my-vm-1
ip netns del vm2
rm -r /list /usr/bin/qemu-system-x86_64 /etc/guestwire /var/lib/prometheus /run/guestwire /run/guestwire.lock`

// proxies has functions of bash that wait for the DNS proxy in a namespace: for its answer about a.example, and for its
// end.
const proxies = `answers() { # NAMESPACE
	ip -n $1 link set lo up # for this question, which no guest asks
	for _ in $(seq 60); do
		if ip netns exec $1 timeout 1 bash -c 'exec 3<>/dev/udp/10.0.2.1/15353 &&
			printf "\0\1\1\0\0\1\0\0\0\0\0\0\1a\7example\0\0\1\0\1" >&3 && head -c 43 <&3' 2>/dev/null | od -An -tx1 | tr -d ' \n' | grep -q c0000201; then return; fi
		sleep 1
	done
	echo "no answer about a.example in $1"
	exit 1
}
gone() { # NAMESPACE
	for _ in $(seq 60); do [ -n "$(ip netns pids $1)" ] || return 0; sleep 1; done
	echo "processes $(ip netns pids $1) in $1"
	exit 1
}`

// purged removes the package while a guest is served. The guest's unit still gives the NIC back.
const purged = `set -e
ip netns add last
ip -n last link add eth0 type veth peer name peer0
ip -n last addr add 10.0.0.2/24 dev eth0
ip -n last link set eth0 up
mkdir /etc/guestwire
echo OWNER=107 >/etc/guestwire/last.env
systemctl start guestwire@last
dpkg --purge guestwire
systemctl is-active guestwire@last
ip -n last link show eth0-tap
systemctl stop guestwire@last
! ip -n last link show eth0-tap || exit 1
ip netns del last
rm -r /etc/guestwire /run/guestwire /run/guestwire.lock`

// anotherBuild gives the package in the directory $1 another version.
const anotherBuild = `set -e
cd "$1"
dpkg-deb -R *.deb unpacked
sed -i 's/^Version: .*/&.another/' unpacked/DEBIAN/control
rm *.deb
dpkg-deb -b unpacked guestwire_another_amd64.deb
rm -r unpacked`

// TestDebian: the package is installed in a Debian without anything else, used, and removed without a trace. Its
// systemd starts the units. The page for operators is typed, from the installation to the removal.
func TestDebian(t *testing.T) {
	deb := one(t, filepath.Join(made(t), "*_amd64.deb"))
	nstest.Need(t, "mmdebstrap", "unshare", "nsenter")
	page, err := os.ReadFile(filepath.Join(nstest.Root(t), "docs/how-to/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Run(suite, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			output(t, "mmdebstrap", "--quiet", "--variant=minbase", "--include=iproute2,systemd,man-db,bash-completion", suite, root)
			output(t, "mkdir", filepath.Join(root, "dist"))
			output(t, "cp", deb, filepath.Join(root, "dist"))
			m := start(t, root)
			files := func() (list []string) {
				elsewhere := []string{"/dist", "/proc", "/run", "/sys", "/dev", "/tmp", "/var/log", "/var/lib/dpkg", "/var/lib/systemd", "/var/cache/man"}
				for path := range strings.Lines(output(t, "find", root, "-xdev", "-printf", "%P %y %m\n")) {
					if !slices.ContainsFunc(elsewhere, func(dir string) bool { return strings.HasPrefix("/"+path, dir+"/") }) {
						list = append(list, path)
					}
				}
				return append(list, m.run(t, "ls -d /run/guestwire* 2>/dev/null || true"))
			}
			clean := files()
			unchanged := func(after string) {
				if now := files(); !slices.Equal(now, clean) {
					t.Errorf("after %s, left or lost: %q", after, slices.DeleteFunc(append(now, clean...), func(f string) bool { return slices.Contains(now, f) && slices.Contains(clean, f) }))
				}
			}

			m.run(t, "dpkg -i /dist/*.deb")
			said := m.run(t, typed)
			for _, want := range []string{`ip link set eth0-tap`, `<interface type=`, `guestwire_wired_nics`, "guestwire-agent: \"setpu\" is none of", "did you mean setup", "GUESTWIRE-LAUNCHER(8)", "complete -o default -F __start_guestwire-agent guestwire-agent"} {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in\n%s", want, said)
				}
			}
			if old := regexp.MustCompile(`(?m)(^|[\s("])(agent|launcher|exporter) (setup|help|serve|-[a-z])`).FindString(said); old != "" {
				t.Errorf("a program is named by another name than the installed one: %q in\n%s", old, said)
			}
			said = m.run(t, units)
			if strings.Contains(said, " loaded failed ") { // the last list
				t.Errorf("a unit failed:\n%s", said)
			}
			for _, want := range []string{"QEMU: -m 1G -display none /disk.img -netdev tap,", "VMM, responder"} {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in\n%s", want, said)
				}
			}
			m.run(t, purged)
			unchanged("the units")

			before, after, found := strings.Cut(string(page), "After the next boot")
			if !found {
				t.Fatal("the page has no reboot")
			}
			tutorial.TypeAt(t, before, m.command)
			m.stop()
			m = start(t, root)
			m.run(t, "systemctl start multi-user.target")
			output(t, "sh", "-c", anotherBuild, "sh", filepath.Join(root, "dist"))
			tutorial.TypeAt(t, after, m.command)
			unchanged("the page")
		})
	}
}

// TestRPM: the package has the files of Debian's, but for the directory of zsh. rpm installs it, finds each file as it
// is recorded, and removes it without a trace.
func TestRPM(t *testing.T) {
	dir := made(t) // make release-check installs rpm
	nstest.Need(t, "rpm", "dpkg-deb")
	for deb, arch := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		file, root := one(t, dir+"/*."+arch+".rpm"), t.TempDir()
		rpm := func(args ...string) string { return output(t, "rpm", append([]string{"--root", root}, args...)...) }
		list := func(what string) string {
			return output(t, "find", root, "-path", root+"/db", "-prune", "-o", "-type", what, "-printf", "/%P\n")
		}
		sorted := func(text string) []string { return slices.Sorted(strings.Lines(text)) }
		// Those of Fedora's packages filesystem and systemd.
		for _, base := range []string{"bin", "lib/systemd/system", "share/bash-completion/completions", "share/zsh/site-functions", "share/fish/vendor_completions.d", "share/man/man8", "share/doc"} {
			output(t, "mkdir", "-p", filepath.Join(root, "usr", base))
		}
		before := list("d,f")
		rpm("--dbpath", "/db", "--install", "--nodeps", "--ignorearch", file)
		rpm("--dbpath", "/db", "--verify", "guestwire")
		var want []string
		for line := range strings.Lines(output(t, "dpkg-deb", "-c", one(t, dir+"/*_"+deb+".deb"))) {
			if words := strings.Fields(line); !strings.HasPrefix(line, "d") {
				want = append(want, strings.Replace(strings.TrimPrefix(words[len(words)-1], "."), "zsh/vendor-completions", "zsh/site-functions", 1)+"\n")
			}
		}
		slices.Sort(want)
		if have := sorted(list("f")); len(want) < 20 || !slices.Equal(have, want) {
			t.Errorf("%s: %q, want %q", arch, have, want)
		}
		rpm("--dbpath", "/db", "--erase", "--nodeps", "guestwire")
		if after := list("d,f"); after != before {
			t.Errorf("%s: after the removal there is\n%s\nand before the installation there was\n%s", arch, after, before)
		}
	}
}

// TestARM64: the programs for arm64 run, as do the tests of what computes alone.
func TestARM64(t *testing.T) {
	dir := made(t) // make release-check installs the emulator
	nstest.Need(t, "qemu-aarch64-static", "dpkg-deb")
	root := t.TempDir()
	output(t, "dpkg-deb", "-x", one(t, filepath.Join(dir, "*_arm64.deb")), root)
	for _, name := range []string{"guestwire-agent", "guestwire-launcher", "guestwire-exporter", "guestwire-node"} {
		program := filepath.Join(root, "usr/bin", name)
		if said := output(t, "qemu-aarch64-static", program, "version"); !strings.HasPrefix(said, name+" v") {
			t.Errorf("%s: %s", name, said)
		}
		output(t, "qemu-aarch64-static", program, "-help")
	}
	top := strings.TrimSpace(output(t, "git", "rev-parse", "--show-toplevel"))
	// TestFamilies plans in a namespace, which the emulator cannot: see below.
	cmd := exec.Command("go", "test", "-short", "-skip", "^TestFamilies$", "-exec", "qemu-aarch64-static", "./cache", "./infra", "./internal/wiring", "./internal/router", "./internal/guestfilter", "./domain/...", "./guestconfig", "./dhcp")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	// The tests of phase2 call themselves: in a user namespace of theirs the kernel gives programs of arm64 to the
	// emulator. It has no NS_GET_NSTYPE and no TUNDETACHFILTER, so that what wires a NIC or opens a tap cannot run.
	binary := filepath.Join(t.TempDir(), "phase2.test")
	cmd = exec.Command("go", "test", "-c", "-o", binary, "./phase2")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd = exec.Command("sh", "-c", emulated, binary)
	cmd.Dir = filepath.Join(top, "phase2")
	all := []syscall.SysProcIDMap{{Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestServeDirectory") {
		t.Errorf("%v\n%s", err, out)
	}
}

// emulated registers the emulator in a user namespace and runs $0, a test of phase2.
const emulated = `set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s ':arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:` +
	`\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$(command -v qemu-aarch64-static):F" >/proc/sys/fs/binfmt_misc/register
exec "$0" -test.short -test.v -test.run '^(TestEvent.*|TestOpen|TestResolvConf|TestRereadResolvConf|TestFollow.*|TestStopCause|TestServeDirectory|Fuzz.*|Example.*)$'`
