package phase1_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestRootlessNobody: where a user namespace has the user 65534, as one of 65536 users has, the machine's root cannot
// be distinguished from that user, and no chown can help.
func TestRootlessNobody(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "unshare", "nsenter")
	nstest.NeedRoot(t, "the test maps many users")
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	holder := exec.CommandContext(t.Context(), "unshare", "-Unm", "sh", "-c", "echo ready; read line")
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Wait()
	defer in.Close()
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(holder.Process.Pid)
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(filepath.Join("/proc", pid, file), []byte("0 100000 65536"), 0); err != nil {
			t.Fatal(err)
		}
	}
	said, err := exec.CommandContext(t.Context(), "nsenter", "-t", pid, "-U", "-n", "-m", "--setuid", "0", "--setgid", "0",
		nstest.Program(t, "examples/guestwire-agent"), "setup", "-uid", "0", "-own", "-nic", "lo", "-binding", "redirect", "-state", "/mnt/vm", "-dir", "/mnt/journals").CombinedOutput()
	if text := string(said); err == nil || !strings.Contains(text, "/: owner 65534, which is how a user outside") || strings.Contains(text, "chown") {
		t.Errorf("%v, %s; want an error that does not name chown", err, text)
	}
}

// TestRootless: an ordinary user wires a NIC as root of a user namespace, in a directory of that user. There, / and
// most other directories belong to users whom the namespace does not have.
func TestRootless(t *testing.T) {
	nstest.SkipUndecided(t)
	t.Parallel()
	nstest.Need(t, "unshare", "setpriv")
	nstest.NeedRoot(t, "the test needs several users")
	nstest.NeedTaps(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	const user, other = 64055, 64056
	mkdirOwned := func(path string, uid int, mode os.FileMode) string {
		t.Helper()
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chown(path, uid, uid), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(target, path string, uid int) string {
		t.Helper()
		if err := errors.Join(os.Symlink(target, path), os.Lchown(path, uid, uid)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := mkdirOwned(filepath.Join("/run", filepath.Base(nstest.Dir(t))), 0, 0o755) // all directories above are the machine's root's
	t.Cleanup(func() { os.RemoveAll(base) })
	home := mkdirOwned(filepath.Join(base, "home"), user, 0o755)
	sticky := mkdirOwned(filepath.Join(base, "sticky"), 0, 0o777|os.ModeSticky)
	open := mkdirOwned(filepath.Join(base, "open"), 0, 0o777)
	const prepare = `sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
ip link add eth0 type veth peer name peer; ip link set eth0 up; ip link set peer up; ip addr add 10.0.0.2/24 dev eth0
for link in eth0 peer; do
	for try in $(seq 400); do
		! ip -br addr show $link | grep -q " UP .*fe80:" || [ -n "$(ip addr show dev $link tentative)" ] || break
		sleep 0.05
	done
done
dump() { ip -d addr; ip route; ip -6 route | sort; nft list ruleset; }
dump >"$dir/before"
same() {
	for try in $(seq 100); do dump | cmp -s "$dir/before" && return 0; sleep 0.05; done
	echo something has changed; dump | diff "$dir/before" -
}
`
	plain, mounts := []string{"unshare", "-Urn"}, []string{"unshare", "-Urnm"}
	bound := []string{"unshare", "-Urnm", "sh", "-ec", `mount --bind "` + home + `" "` + mkdirOwned(filepath.Join(base, "bound"), 0, 0o755) + `"; exec "$@"`, "sh"}
	tmpfs := []string{"unshare", "-Urnm", "sh", "-ec", `mount -t tmpfs none /mnt; exec "$@"`, "sh"}
	for name, c := range map[string]struct {
		wrapper    []string
		state      string
		uid        int
		complaints string // none: it works
	}{
		"home":                              {plain, home + "/vm", 0, ""},
		"mounts of its own":                 {mounts, home + "/vm", 0, ""},
		"in a sticky directory":             {plain, sticky + "/vm", 0, ""},
		"own in a sticky directory":         {plain, mkdirOwned(sticky+"/mine", user, 0o755) + "/vm", 0, ""},
		"bound":                             {bound, base + "/bound/vm", 0, ""},
		"tmpfs":                             {tmpfs, "/mnt/vm", 0, ""},
		"other user's home":                 {plain, mkdirOwned(mkdirOwned(base+"/other", other, 0o755)+"/for-user", user, 0o755) + "/vm", 0, ""},
		"root's link":                       {plain, link(home, base+"/link", 0) + "/vm", 0, ""},
		"other user's in a sticky one":      {plain, mkdirOwned(mkdirOwned(sticky+"/other", other, 0o755)+"/for-user", user, 0o755) + "/vm", 0, "any user outside of this user namespace"},
		"other user's link in a sticky one": {plain, link(home, sticky+"/link", other) + "/vm", 0, "any user outside of this user namespace"},
		"open":                              {plain, open + "/vm", 0, "mode 0777"},
		"below an open one":                 {plain, mkdirOwned(open+"/mine", user, 0o755) + "/vm", 0, "mode 0777"},
		"state of another user's":           {plain, mkdirOwned(base+"/theirs", other, 0o755), 0, "of a user outside of this user namespace"},
		"own, but open":                     {plain, mkdirOwned(home+"/open", user, 0o777), 0, "owner 0, mode 0777"},
		"unmapped owner":                    {plain, home + "/vm", 107, "owner.uid: 107 is not mapped in this user namespace, which has 0 to 0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := home
			if strings.HasPrefix(c.state, "/mnt/") || strings.HasPrefix(c.state, base+"/bound/") {
				dir = filepath.Dir(c.state)
			}
			tried := "redirect"
			if name == "home" {
				tried = "bridge redirect masquerade"
			}
			script := "set -e\ndir=$(mktemp -d -p " + dir + ")\n" + prepare + fmt.Sprintf(`
agent() { verb=$1; shift; "%s" $verb -own -nic eth0 -dir "%s/journals" "$@"; }
for binding in %s; do
	if ! out=$(agent setup -binding $binding -state "%s" -uid %d 2>&1); then
		echo "$out"
		same
		exit 1
	fi
	agent check
	agent teardown
	same
done
echo done`, agent, dir, tried, c.state, c.uid)
			line := append([]string{"--reuid", fmt.Sprint(user), "--regid", fmt.Sprint(user), "--clear-groups", "--"}, c.wrapper...)
			out, err := exec.CommandContext(t.Context(), "setpriv", append(line, "sh", "-c", script)...).CombinedOutput()
			text := string(out)
			if c.complaints == "" && (err != nil || !strings.HasSuffix(text, "done\n")) || strings.Contains(text, "something has changed") {
				t.Errorf("%v: %s", err, text)
			}
			if c.complaints != "" && (err == nil || !strings.Contains(text, c.complaints)) {
				t.Errorf("%v: %s; want %q", err, text, c.complaints)
			}
		})
	}
}
