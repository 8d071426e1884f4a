// Package divert has programs that others wrote get what a guest opens: Debian's mitmproxy, sslh and socat, without a
// privilege, in the namespace of the guest's pod, and tayga in the world. The guest is a namespace on the tap.
package divert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// owner is the user of the programs in the namespace, who has no privilege.
var owner = infra.Owner{UID: 1000, GID: 1000}

// scene is a pod with a guest, whose NIC has the entries, and a world that says who asks it.
type scene struct {
	nstest.Network
	spec  infra.Spec
	guest *guest.Guest
	nic   phase1.NIC
	home  string // a directory of the owner's
}

// newScene wires the pod for a guest that is masqueraded.
func newScene(t *testing.T, entries ...string) *scene {
	return newSceneOf(t, infra.Masquerade{}, entries...)
}

// newSceneOf wires the pod with a binding.
func newSceneOf(t *testing.T, binding infra.Binding, entries ...string) *scene {
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the programs are another user's")
	nstest.Need(t, "curl")
	s := &scene{Network: nstest.NewNetwork(t), home: nstest.Dir(t)}
	if err := os.Chown(s.home, int(owner.UID), int(owner.GID)); err != nil {
		t.Fatal(err)
	}
	s.nic = phase1.NIC{NetNS: s.Pod.File, Name: "eth0"}
	s.spec = infra.Spec{Binding: binding, Owner: nstest.Owner(), State: s.State}
	for _, text := range entries {
		var e infra.Egress
		if err := e.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		s.spec.Egress = append(s.spec.Egress, e)
	}
	r, err := s.nic.Setup(t.Context(), s.spec)
	if err != nil {
		t.Fatal(err)
	}
	s.boot(t, r)
	return s
}

// boot starts a guest at the NIC's tap, with the addresses of its record.
func (s *scene) boot(t *testing.T, r cache.Record) {
	t.Helper()
	s.guest = nstest.Boot(t, s.Pod.File, r, "guest")
	bits, gateway6 := 128, r.IPv6.Gateway
	if len(r.IPv6.OnLink) > 0 {
		bits = r.IPv6.OnLink[0].Bits()
	} else { // routed
		gateway6 = r.IPv6.Router.Address
	}
	for _, line := range []string{
		fmt.Sprintf("addr add %v dev eth0", r.IPv4.Address), fmt.Sprintf("route add default via %v dev eth0 onlink", r.IPv4.Gateway()),
		fmt.Sprintf("addr add %v dev eth0 nodad", netip.PrefixFrom(r.IPv6.Address, bits)), fmt.Sprintf("route add default via %v dev eth0 onlink", gateway6),
	} {
		if _, err := s.guest.Run("ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
}

// curl has the guest's curl get something, until it succeeds: the program may not listen yet.
func (s *scene) curl(t *testing.T, args ...string) (out string) {
	t.Helper()
	nstest.Eventually(t, func() (err error) {
		out, err = s.tryCurl(args...)
		return err
	})
	return out
}

// refusedWeb wants the guest to be refused at a port of the world's that serveWeb serves.
func (s *scene) refusedWeb(t *testing.T, to netip.Addr, port uint16) {
	t.Helper()
	if c, err := s.guest.DialTCP(t.Context(), netip.AddrPortFrom(to, port)); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			c.Close()
		}
		t.Errorf("%v, port %d: %v, want it refused", to, port, err)
	}
}

func (s *scene) tryCurl(args ...string) (string, error) {
	return s.guest.Run("curl", append([]string{"--silent", "--show-error", "--noproxy", "*", "--max-time", "60"}, args...)...)
}

// program runs a program of others as the owner in the pod's namespace, until the test ends.
func (s *scene) program(t *testing.T, cmd *exec.Cmd) *output {
	t.Helper()
	out := &output{}
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.home, out, out
	if err := launch.Start(cmd, s.Pod.File, owner); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s says\n%s", cmd.Path, out)
		}
	})
	return out
}

// unpackedProgram is the command of what install.sh has unpacked into a directory, with its libraries.
func unpackedProgram(t *testing.T, directory, path string, args ...string) *exec.Cmd {
	t.Helper()
	root := unpacked.Path(directory)
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		nstest.Skip(t, "no "+directory+": make install")
	}
	cmd := exec.Command(filepath.Join(root, path), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + root + "/usr/lib/x86_64-linux-gnu:" + root + "/lib/x86_64-linux-gnu"}
	return cmd
}

// metadata is the address of the clouds' metadata services.
var metadata = netip.MustParseAddr("169.254.169.254")

// serveWeb has the world answer at its addresses beyond and at the one of metadata, by HTTP at ports 80 and 8080, by
// HTTPS at 443: with the scheme, the name that is asked for, the address that asks, and the credential. It returns the
// path of the certificate, which is that of the names that the pages have.
func (s *scene) serveWeb(t *testing.T) (certificate string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the world"}, DNSNames: []string{"good.example", "bad.example", "registry.example", "api.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate = filepath.Join(nstest.Dir(t), "world.pem")
	if err := os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "the world got %s://%s%s from %s with %q", scheme, r.Host, r.URL.Path, host, r.Header.Get("Authorization"))
	})
	server := &http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}}
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // no HTTP/2, with which mitmproxy 8 and Go disagree
	ended := make(chan error)
	s.World.IP(fmt.Sprintf("addr add %v/32 dev lo", metadata))
	for _, a := range []netip.Addr{nstest.Beyond4, nstest.Beyond6, metadata} {
		for _, port := range []uint16{80, 443, 8080} {
			var l net.Listener
			if err := netns.Do(s.World.File, func() (err error) {
				l, err = net.Listen("tcp", netip.AddrPortFrom(a, port).String())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			go func() {
				if port == 443 {
					ended <- server.ServeTLS(l, "", "")
				} else {
					ended <- server.Serve(l)
				}
			}()
		}
	}
	t.Cleanup(func() {
		server.Close()
		for range 9 {
			if err := <-ended; err != http.ErrServerClosed {
				t.Error(err)
			}
		}
	})
	return certificate
}
