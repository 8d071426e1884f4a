package divert

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

const pages = "../../../docs/how-to/"

// fresh is the reader's machine: guestwire never ran there, and the pod has its name. Every user may open taps. The
// machine's loopback link is its own. The commands of a page come by standard input.
const fresh = `
set -euo pipefail
mount -t tmpfs run /run; mount -t tmpfs bin /usr/local/bin; mount -t tmpfs srv /srv; mount -t tmpfs net /dev/net; chmod 755 /run /usr/local/bin /srv /dev/net
mknod -m 666 /dev/net/tun c 10 200
ip link set lo up
mkdir /run/guestwire /run/netns; touch /run/netns/pod; mount --bind /proc/self/fd/3 /run/netns/pod
mount --bind $HOSTS /etc/hosts
mount --bind $RESOLVERS /etc/resolv.conf
for program in agent:$AGENT launcher:$LAUNCHER broker:$BROKER socat:$SOCAT; do install -m 755 ${program#*:} /usr/local/bin/guestwire-${program%%:*}; done
cd /usr/local/bin; mv guestwire-broker broker
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec guestwire-socat "$@"\n' $SOCAT_LIBRARIES >socat
printf '#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONHOME=%s/usr LD_LIBRARY_PATH=%s/usr/lib/x86_64-linux-gnu exec %s/usr/bin/python3.11 "$@"\n' $PYTHON $PYTHON $PYTHON >python3
chmod 755 socat python3
cd "$OLDPWD"
exec bash -euo pipefail
`

// machine is that of a reader, whose shell runs until the test ends, and a scene with the machine's pod.
type machine struct {
	*scene
	shell io.Writer
	said  *output
	root  string // the path of the machine's files
	// hosts and resolvers are the guest's files. Both know the names of example: where hosts has none, the world's
	// resolver does, and the guest asks its gateway.
	hosts, resolvers, certificate string
}

// newMachine is a machine to whose hosts the names are added.
func newMachine(t *testing.T, names string) *machine {
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the programs are another user's")
	nstest.Need(t, "curl", "unshare")
	socat, python := unpacked.Path("socat"), unpacked.Path("mitmproxy")
	if _, err := os.Stat(socat); err != nil {
		nstest.Skip(t, "no socat: make install")
	}
	n := nstest.NewNetwork(t)
	m := &machine{scene: &scene{Network: n, nic: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}}, said: &output{}}
	m.certificate = m.serveWeb(t)
	file := func(name, text string) string {
		path := filepath.Join(nstest.Dir(t), name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	m.hosts, m.resolvers = file("hosts", "127.0.0.1 localhost\n"+names), file("guest.conf", "nameserver 10.0.2.1\n")
	resolvers := file("resolv.conf", fmt.Sprintf("nameserver %v\n", nstest.Beyond4))
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", fresh)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:"+os.Getenv("PATH"), "HOSTS="+m.hosts, "RESOLVERS="+resolvers, "SSL_CERT_FILE="+m.certificate,
		"AGENT="+nstest.Program(t, "examples/guestwire-agent"), "LAUNCHER="+nstest.Program(t, "examples/guestwire-launcher"), "BROKER="+nstest.Program(t, "internal/rig/divert/broker"),
		"SOCAT="+socat+"/usr/bin/socat", "SOCAT_LIBRARIES="+socat+"/usr/lib/x86_64-linux-gnu", "PYTHON="+python)
	cmd.ExtraFiles = []*os.File{n.Pod.File}
	cmd.Stdout, cmd.Stderr = m.said, m.said
	shell, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.shell, m.root = shell, fmt.Sprintf("/proc/%d/root", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		shell.Close()
		cmd.Process.Kill() // unshare, and so all processes of the machine
		<-ended
		if t.Failed() {
			t.Logf("the machine says\n%s", m.said)
		}
	})
	return m
}

// types types the commands of a page below the heading, and waits until the last one has ended or is in the background.
func (m *machine) types(t *testing.T, page, heading string) {
	t.Helper()
	end := fmt.Sprintf("%s#%s is typed", page, heading)
	if _, err := fmt.Fprintf(m.shell, "%s\necho '%s'\n", nstest.Commands(t, pages+page+".md", heading), end); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		if strings.Contains(m.said.String(), end) {
			return nil
		}
		return fmt.Errorf("the page is not typed yet:\n%s", m.said)
	})
}

// record is that of the machine's NIC, once it is written.
func (m *machine) record(t *testing.T) cache.Record {
	t.Helper()
	state := m.root + "/run/guestwire/vm1"
	nstest.Eventually(t, func() error { _, err := os.Stat(state + "/eth0.json"); return err })
	return nstest.Record(t, state, "eth0")
}

// converse types in the guest what the page shows at its prompt.
func (m *machine) converse(t *testing.T, page string) {
	t.Helper()
	for _, c := range conversation(t, page, "guest$ ") {
		m.shows(t, c)
	}
}

// shows wants the guest to show something, perhaps only once a program listens.
func (m *machine) shows(t *testing.T, c typed) {
	t.Helper()
	nstest.Eventually(t, func() error {
		out, err := m.guest.Run("unshare", "--mount", "sh", "-c", fmt.Sprintf("mount --bind %s /etc/hosts; mount --bind %s /etc/resolv.conf; export CURL_CA_BUNDLE=%s; (%s) 2>&1; true", m.hosts, m.resolvers, m.certificate, c.typed))
		if err != nil || !c.is(out) {
			return fmt.Errorf("in the guest %s shows\n%s%v; the page has\n%s", c.typed, out, err, c.shown)
		}
		return nil
	})
}

// typePage types the commands of a page, has a guest boot, and types what the page shows at the prompt of the guest.
// The programs that the commands leave run until the test ends.
func typePage(t *testing.T, page string) (said *output) {
	m := newMachine(t, "198.51.100.9 good.example bad.example\n")
	m.types(t, page, "")
	m.boot(t, m.record(t))
	m.converse(t, page)
	return m.said
}

// typed is what a page has at the guest's prompt, and what the guest shows then. "..." stands for any text of a line.
type typed struct{ typed, shown string }

func (c typed) is(shown string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(c.shown)), `\.\.\.`, ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(strings.TrimSpace(shown))
}

// conversation is what a page shows at a prompt, such as the guest's, "guest$ ": lines that begin with it, in a fence.
func conversation(t *testing.T, page, prompt string) (list []typed) {
	t.Helper()
	text, err := os.ReadFile(pages + page + ".md")
	if err != nil {
		t.Fatal(err)
	}
	talking := false
	for line := range strings.Lines(string(text)) {
		command, is := strings.CutPrefix(line, prompt)
		switch {
		case is:
			list, talking = append(list, typed{typed: strings.TrimSpace(command)}), true
		case strings.HasPrefix(line, "```"):
			talking = false
		case talking:
			list[len(list)-1].shown += line
		}
	}
	if len(list) == 0 {
		t.Fatalf("%s shows nothing at %q", page, prompt)
	}
	return list
}

// TestMetadataPage: the guest reads metadata of a program of the namespace, and asks no other metadata service.
func TestMetadataPage(t *testing.T) { typePage(t, "metadata-service") }

// TestLocalPage: the guest reaches services at 127.0.0.1 of the pod and of the host.
func TestLocalPage(t *testing.T) { typePage(t, "local-service") }

// TestSandboxPage: the guest reaches the names of the list, and one host by the broker, which puts the credential in.
// All else is refused, and the log of drops has it with its reason. No resolver gets another name.
func TestSandboxPage(t *testing.T) {
	const page = "sandbox"
	m, asked := newMachine(t, ""), &questions{}
	asked.serve(t, m.World)
	m.types(t, page, "")
	nstest.Eventually(t, func() error {
		said := m.said.String()
		if strings.Contains(said, "follows what is dropped") && strings.Contains(said, "follows the guest's flows\n") {
			return nil
		}
		return fmt.Errorf("drops or flows do not run yet:\n%s", said)
	})
	m.bootByDHCP(t)
	m.converse(t, page)
	for _, log := range conversation(t, page, "$ cat ") {
		nstest.Eventually(t, func() error {
			have, err := os.ReadFile(m.root + log.typed)
			for line := range strings.Lines(log.shown) {
				c := typed{shown: line}
				if !slices.ContainsFunc(strings.Split(string(have), "\n"), c.is) {
					err = errors.Join(err, fmt.Errorf("%s has no line %s:\n%s", log.typed, line, have))
				}
			}
			return err
		})
	}
	// The table's other rows.
	for _, url := range []string{
		"http://registry.example:8080/", "https://api.example/", "http://[" + nstest.Beyond6.String() + "]/", "http://registry.example:853/",
	} {
		m.shows(t, typed{"curl -sS --max-time 60 --globoff '" + url + "'", "curl: (7) Failed to connect to ..."})
	}
	m.shows(t, typed{"curl -sS http://192.0.2.1/", "not allowed"})
	if err := m.datagram(netip.AddrPortFrom(nstest.Beyond4, 443)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("UDP 443: %v, want it refused at once", err)
	}
	for protocol, name := range map[string]string{"udp": "evil.example.", "tcp": "a.secret.evil.example."} {
		if err := answeredBy(m.guest.File, netip.AddrPortFrom(nstest.Beyond4, 53).String(), protocol, name, "REFUSED"); err != nil {
			t.Error(err)
		}
	}
	if have, want := asked.names(), []string{"api.example.", "registry.example."}; !slices.Equal(have, want) {
		t.Errorf("the resolver got %v, want %v", have, want)
	}
	if said := m.said.String(); strings.Contains(said, "secret\n") {
		t.Errorf("the token is in what the programs say:\n%s", said)
	}
}

// datagram has the guest send a datagram, and returns the error that comes back.
func (m *machine) datagram(to netip.AddrPort) error {
	return netns.Do(m.guest.File, func() error {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = c.Read(make([]byte, 1))
		return err
	})
}

// TestBrokerPage: the guest's TLS goes on to the names of the broker's list alone, and HTTP to one host has a
// credential that the guest does not have.
func TestBrokerPage(t *testing.T) {
	said := typePage(t, "credential-broker").String()
	for _, line := range []string{`tls "good.example" 198.51.100.9:443`, `tls "bad.example" 198.51.100.9:443`, `http "bad.example"`} {
		if !strings.Contains(said, line) {
			t.Errorf("the broker does not say %s", line)
		}
	}
}
