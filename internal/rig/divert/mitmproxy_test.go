package divert

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestMitmproxy: mitmproxy in transparent mode gets a guest's HTTP and HTTPS, by IPv4 and IPv6, and goes on to where
// the guest wanted to go, which it knows from the kernel alone. The guest sees mitmproxy's certificate. mitmproxy has
// no privilege.
func TestMitmproxy(t *testing.T) {
	s := newScene(t, "divert all 80 :15443", "divert all 443 :15443", "refuse all")
	s.serveWeb(t)
	mitmproxy := unpackedProgram(t, "mitmproxy", "usr/bin/python3.11", "-c", "from mitmproxy.tools.main import mitmdump; mitmdump()",
		"--mode", "transparent", "--listen-port", "15443", "--ssl-insecure", "--set", "confdir="+s.home, "--set", "flow_detail=1")
	mitmproxy.Env = append(mitmproxy.Env, "PYTHONHOME="+unpacked.Path("mitmproxy/usr"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1", "HOME="+s.home)
	said := s.program(t, mitmproxy)
	authority := filepath.Join(s.home, "mitmproxy-ca-cert.pem")
	nstest.Eventually(t, func() error {
		_, err := os.Stat(authority)
		return err
	})
	for _, to := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
		// No resolver knows the name, so the address is what the kernel says.
		resolve := "unknown.example:%d:" + to.String()
		if to.Is6() {
			resolve = fmt.Sprintf("unknown.example:%%d:[%v]", to)
		}
		from := map[bool]netip.Addr{true: nstest.Pod4, false: nstest.Pod6}[to.Is4()]
		for scheme, port := range map[string]int{"http": 80, "https": 443} {
			address := scheme + "://unknown.example/page"
			if have, want := s.curl(t, "--resolve", fmt.Sprintf(resolve, port), "--cacert", authority, address), fmt.Sprintf(`the world got %s from %v with ""`, address, from); have != want {
				t.Errorf("%v: %s, want %s", to, have, want)
			}
			wanted := netip.AddrPortFrom(to, uint16(port)).String()
			nstest.Eventually(t, func() error {
				if !strings.Contains(said.String(), "server connect "+wanted+"\n") {
					return fmt.Errorf("mitmproxy does not say that it goes to %s:\n%s", wanted, said)
				}
				return nil
			})
		}
		issuer := regexp.MustCompile(`issuer: .*`).FindString(s.curl(t, "--resolve", fmt.Sprintf(resolve, 443), "--cacert", authority, "--verbose", "--stderr", "-", "https://unknown.example/"))
		if !strings.Contains(issuer, "CN=mitmproxy") {
			t.Errorf("the guest sees the certificate of %q", issuer)
		}
		s.refusedWeb(t, to, 8080)
	}
}
