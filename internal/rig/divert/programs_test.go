package divert

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestSSLH: sslh gets all TLS of the guest, by IPv4 and IPv6, and lets it on to the names of a list. A connection to
// another name ends, whatever its address.
func TestSSLH(t *testing.T) {
	s := newScene(t, "divert all 443 :15443", "refuse all")
	certificate := s.serveWeb(t)
	configuration := filepath.Join(nstest.Dir(t), "sslh.cfg")
	if err := os.WriteFile(configuration, []byte(`
foreground: true; numeric: true; timeout: 5; on-timeout: "anyprot";
listen: ( { host: "0.0.0.0"; port: "15443"; }, { host: "::"; port: "15443"; } );
protocols: ( { name: "tls"; host: "198.51.100.9"; port: "443"; sni_hostnames: [ "good.example" ]; },
             { name: "anyprot"; host: "127.0.0.1"; port: "9"; } ); # where nobody listens
`), 0o644); err != nil {
		t.Fatal(err)
	}
	s.program(t, unpackedProgram(t, "sslh", "usr/sbin/sslh-select", "--config="+configuration))
	for _, to := range []string{"198.51.100.9", "[2001:db8:9::9]", "203.0.113.1"} { // where there is no server, too
		get := func(name string) []string {
			return []string{"--resolve", name + ":443:" + to, "--cacert", certificate, "https://" + name + "/"}
		}
		if have, want := s.curl(t, get("good.example")...), `the world got https://good.example/ from 10.244.1.7 with ""`; have != want {
			t.Errorf("by %s: %s, want %s", to, have, want)
		}
		if have, err := s.tryCurl(get("bad.example")...); err == nil || !strings.Contains(have+err.Error(), "SSL_ERROR_SYSCALL") {
			t.Errorf("a name that is not allowed by %s: %s, %v", to, have, err)
		}
	}
}

// TestSocat: socat serves a loopback address alone. The guest reaches it by TCP and UDP at the address of the entry.
// The world does not, nor does the guest at another port, or by what it sends to 127.0.0.1 itself.
func TestSocat(t *testing.T) {
	s := newScene(t, "divert 169.254.169.254 80 127.0.0.1:8080", "divert 169.254.169.254 53/udp 127.0.0.11:5353", "refuse all")
	s.program(t, unpackedProgram(t, "socat", "usr/bin/socat", "TCP4-LISTEN:8080,bind=127.0.0.1,fork,reuseaddr", "SYSTEM:echo socat sees $SOCAT_PEERADDR"))
	s.program(t, unpackedProgram(t, "socat", "usr/bin/socat", "UDP4-RECVFROM:5353,bind=127.0.0.11,fork", "SYSTEM:echo socat sees $SOCAT_PEERADDR"))
	for protocol, to := range map[string]string{"tcp": "169.254.169.254:80", "udp": "169.254.169.254:53"} {
		nstest.Eventually(t, func() error {
			if have, err := ask(s.guest.File, protocol, to); err != nil || have != "socat sees 10.0.2.2\n" {
				return fmt.Errorf("%s: %q, %v", protocol, have, err)
			}
			return nil
		})
	}
	for from, at := range map[*os.File][]string{
		s.guest.File: {"169.254.169.254:8080", "169.254.169.254:443"},
		s.World.File: {"10.244.1.7:8080", "10.244.1.7:80"},
	} {
		for _, to := range at {
			if have, err := ask(from, "tcp", to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %q, %v, want it refused", to, have, err)
			}
		}
	}
	// A guest that sends packets to 127.0.0.1 by its card.
	for _, line := range []string{"link set lo up", "route del local 127.0.0.0/8 dev lo table local", "route del local 127.0.0.1 dev lo table local", "route add 127.0.0.1 via 10.0.2.1 dev eth0"} {
		if _, err := s.guest.Run("ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	before := s.dropped(t, "loopback")
	if out, err := s.tryCurl("--max-time", "2", "--interface", "10.0.2.2", "http://127.0.0.1:8080/"); err == nil || !strings.Contains(err.Error(), "exit status 28") { // no answer
		t.Errorf("127.0.0.1 from the guest: %s, %v", out, err)
	}
	if n := s.dropped(t, "loopback") - before; n == 0 {
		t.Error("no packet to 127.0.0.1 is dropped")
	}
}

// dockerRules are those of Docker's embedded resolver in a container's namespace, as libnetwork/resolver_unix.go makes
// them: the resolver listens at two ports of the kernel's choice.
const dockerRules = `*nat
:DOCKER_OUTPUT - [0:0]
:DOCKER_POSTROUTING - [0:0]
-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT
-A POSTROUTING -d 127.0.0.11/32 -j DOCKER_POSTROUTING
-A DOCKER_OUTPUT -d 127.0.0.11/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:41543
-A DOCKER_OUTPUT -d 127.0.0.11/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:35187
-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport 41543 -j SNAT --to-source :53
-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp -m udp --sport 35187 -j SNAT --to-source :53
COMMIT
`

// TestDockerResolver: beside the rules of Docker's resolver, which translate port 53 for processes of the namespace
// alone, a divert to 127.0.0.11:53 leads to the ports at which it listens. Until Setup has seen these, nobody listens.
func TestDockerResolver(t *testing.T) {
	nstest.Need(t, "iptables-restore")
	s := newScene(t, "divert 192.0.2.53 53 127.0.0.11:53", "divert 192.0.2.53 53/udp 127.0.0.11:53", "refuse all")
	restore := exec.Command("nsenter", "--net="+s.Pod.Path(), "iptables-restore", "--noflush")
	restore.Stdin = strings.NewReader(dockerRules)
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.program(t, unpackedProgram(t, "socat", "usr/bin/socat", "TCP4-LISTEN:41543,bind=127.0.0.11,fork,reuseaddr", "SYSTEM:echo resolver"))
	s.program(t, unpackedProgram(t, "socat", "usr/bin/socat", "UDP4-RECVFROM:35187,bind=127.0.0.11,fork", "SYSTEM:echo resolver"))
	answers := func(from *os.File, protocol, to string) {
		t.Helper()
		nstest.Eventually(t, func() error {
			if have, err := ask(from, protocol, to); err != nil || have != "resolver\n" {
				return fmt.Errorf("%s, %s: %q, %v", protocol, to, have, err)
			}
			return nil
		})
	}
	protocols := []string{"tcp", "udp"}
	for _, protocol := range protocols {
		answers(s.Pod.File, protocol, "127.0.0.11:53")
		if have, err := ask(s.guest.File, protocol, "192.0.2.53:53"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %q, %v, want it refused", protocol, have, err)
		}
	}
	if _, err := s.nic.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range protocols {
		answers(s.guest.File, protocol, "192.0.2.53:53")
	}
	if err := s.nic.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// dropped is how many packets the wiring has dropped for the reason.
func (s *scene) dropped(t *testing.T, reason string) (packets uint64) {
	t.Helper()
	report, err := s.nic.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Drops {
		if c.Reason == reason {
			packets += c.Packets
		}
	}
	return packets
}

// ask asks from a namespace, and returns the answer.
func ask(from *os.File, protocol, to string) (string, error) {
	var c net.Conn
	if err := netns.Do(from, func() (err error) {
		c, err = net.Dial(protocol, to)
		return err
	}); err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("\n")); err != nil {
		return "", err
	}
	answer := make([]byte, 100)
	n, err := c.Read(answer)
	return string(answer[:n]), err
}
