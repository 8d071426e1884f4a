package divert

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

const pages = "../../../docs/how-to/"

// machine is the reader's: guestwire never ran there, and the pod has its name. The names of example are in the
// world. The machine's loopback link is its own.
const machine = `
set -euo pipefail
mount -t tmpfs run /run; mount -t tmpfs bin /usr/local/bin; mount -t tmpfs srv /srv; chmod 755 /run /usr/local/bin /srv
ip link set lo up
mkdir /run/guestwire /run/netns; touch /run/netns/pod; mount --bind /proc/self/fd/3 /run/netns/pod
mount --bind $HOSTS /etc/hosts
for program in agent:$AGENT broker:$BROKER socat:$SOCAT; do install -m 755 ${program#*:} /usr/local/bin/guestwire-${program%%:*}; done
cd /usr/local/bin; mv guestwire-broker broker
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec guestwire-socat "$@"\n' $SOCAT_LIBRARIES >socat
printf '#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONHOME=%s/usr LD_LIBRARY_PATH=%s/usr/lib/x86_64-linux-gnu exec %s/usr/bin/python3.11 "$@"\n' $PYTHON $PYTHON $PYTHON >python3
chmod 755 socat python3
cd "$OLDPWD"
`

// typePage types the commands of a page, in the machine's shell, has a guest boot, and types what the page shows at the
// prompt of the guest. The programs that the commands leave run until the test ends.
func typePage(t *testing.T, page string) (said *output) {
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the programs are another user's")
	nstest.Need(t, "curl", "unshare")
	socat, python := unpacked.Path("socat"), unpacked.Path("mitmproxy")
	if _, err := os.Stat(socat); err != nil {
		nstest.Skip(t, "no socat: make install")
	}
	n := nstest.NewNetwork(t)
	s := &scene{Network: n, nic: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}}
	certificate := s.serveWeb(t)
	hosts := filepath.Join(nstest.Dir(t), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n198.51.100.9 good.example bad.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := machine + nstest.Commands(t, pages+page+".md", "") + "\necho the page is typed\nread\n"
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:"+os.Getenv("PATH"), "HOSTS="+hosts, "SSL_CERT_FILE="+certificate,
		"AGENT="+nstest.Program(t, "examples/guestwire-agent"), "BROKER="+nstest.Program(t, "internal/rig/divert/broker"),
		"SOCAT="+socat+"/usr/bin/socat", "SOCAT_LIBRARIES="+socat+"/usr/lib/x86_64-linux-gnu", "PYTHON="+python)
	cmd.ExtraFiles = []*os.File{n.Pod.File}
	said = &output{}
	cmd.Stdout, cmd.Stderr = said, said
	goOn, err := cmd.StdinPipe() // for which the shell waits
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		goOn.Close()
		cmd.Process.Kill() // unshare, and so all processes of the machine
		<-ended
		if t.Failed() {
			t.Logf("the machine says\n%s", said)
		}
	})
	nstest.Eventually(t, func() error {
		if strings.Contains(said.String(), "the page is typed") {
			return nil
		}
		return fmt.Errorf("the page is not typed yet:\n%s", said)
	})
	s.boot(t, nstest.Record(t, fmt.Sprintf("/proc/%d/root/run/guestwire/vm1", cmd.Process.Pid), "eth0"))
	for _, c := range conversation(t, page) {
		nstest.Eventually(t, func() error {
			out, err := s.guest.Run("unshare", "--mount", "sh", "-c", fmt.Sprintf("mount --bind %s /etc/hosts; export CURL_CA_BUNDLE=%s; (%s) 2>&1; true", hosts, certificate, c.typed))
			if err != nil || !c.is(out) {
				return fmt.Errorf("in the guest %s shows\n%s%v; the page has\n%s", c.typed, out, err, c.shown)
			}
			return nil
		})
	}
	return said
}

// typed is what a page has at the guest's prompt, and what the guest shows then. "..." stands for any text of a line.
type typed struct{ typed, shown string }

func (c typed) is(shown string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(c.shown)), `\.\.\.`, ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(strings.TrimSpace(shown))
}

// conversation is what a page shows of the guest: lines that begin with "guest$ ", in a fence.
func conversation(t *testing.T, page string) (list []typed) {
	t.Helper()
	text, err := os.ReadFile(pages + page + ".md")
	if err != nil {
		t.Fatal(err)
	}
	talking := false
	for line := range strings.Lines(string(text)) {
		command, is := strings.CutPrefix(line, "guest$ ")
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
		t.Fatalf("%s shows nothing of the guest", page)
	}
	return list
}

// TestMetadataPage: the guest reads metadata of a program of the namespace, and asks no other metadata service.
func TestMetadataPage(t *testing.T) { typePage(t, "metadata-service") }

// TestLocalPage: the guest reaches services at 127.0.0.1 of the pod and of the host.
func TestLocalPage(t *testing.T) { typePage(t, "local-service") }

// TestBrokerPage: the guest's TLS goes on to the names of the broker's list alone, and HTTP to one host has a
// credential that the guest does not have.
func TestBrokerPage(t *testing.T) {
	code, err := os.ReadFile("broker/main.go")
	if err != nil {
		t.Fatal(err)
	}
	golden.Parts(t, pages+"credential-broker.md", "internal/rig/divert", map[string]string{"broker": "```go\n" + string(code) + "```\n"})
	said := typePage(t, "credential-broker").String()
	for _, line := range []string{`tls "good.example" 198.51.100.9:443`, `tls "bad.example" 198.51.100.9:443`, `http "bad.example"`} {
		if !strings.Contains(said, line) {
			t.Errorf("the broker does not say %s", line)
		}
	}
}
