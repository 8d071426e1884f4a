package podnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// mesh is a service mesh's part in a pod: rules that hand TCP connections to a proxy, and the proxy.
type mesh struct {
	name string
	// rules are the tables as iptables-restore(8) takes them. The guest's packets come from the link named. Where
	// the two families differ, the text has the words of IPv4: see familyOf6.
	rules func(link string) string
	// create changes what else the mesh changes in the namespace; nil: nothing.
	create func(n *nstest.Namespace)
	// proxy opens the proxy's sockets.
	proxy proxy
}

// familyOf6 turns the addresses in a mesh's rules into those of IPv6.
var familyOf6 = strings.NewReplacer("127.0.0.1/32", "::1/128", "127.0.0.6/32", "::6/128", "169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff")

// install creates the rules in both families, in the place of those that are there.
func (m mesh) install(t testing.TB, n *nstest.Namespace, link string) {
	t.Helper()
	text := m.rules(link)
	restoreRules(t, n, "iptables-restore", text)
	restoreRules(t, n, "ip6tables-restore", familyOf6.Replace(text))
}

func restoreRules(t testing.TB, n *nstest.Namespace, program, text string) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.Name, program)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", program, err, out, text)
	}
}

// meshUser is the user and group of Istio's proxies.
const meshUser = 1337

// The ports of Istio's proxies.
const (
	meshOut    = 15001 // connections of the application, by REDIRECT
	meshIn     = 15006 // connections to the application, by REDIRECT
	meshTunnel = 15008 // HBONE: connections to the application in a tunnel of another proxy
	meshHealth = 15021 // the proxy's own state
)

// meshes are the rules that istio-cni and istio-init create, as the golden files of Istio's own tests have them
// (tools/istio-iptables/pkg/capture, cni/pkg/iptables).
var meshes = []mesh{
	{
		name:   "Istio sidecar",
		rules:  func(string) string { return sidecarRules("") },
		create: addProxyAddress, proxy: proxy{},
	},
	{
		name:   "Istio sidecar, reroute-virtual-interfaces",
		rules:  func(link string) string { return sidecarRules(link) },
		create: addProxyAddress, proxy: proxy{},
	},
	{
		name:   "Istio ambient",
		rules:  func(string) string { return ambientRules("", false) },
		create: addMarkRoute, proxy: proxy{mark: 0x539, transparent: true},
	},
	{
		name:   "Istio ambient, reroute-virtual-interfaces",
		rules:  func(link string) string { return ambientRules(link, false) },
		create: addMarkRoute, proxy: proxy{mark: 0x539, transparent: true},
	},
	{
		name:   "Istio ambient, reroute-virtual-interfaces, without the clients' addresses",
		rules:  func(link string) string { return ambientRules(link, false) },
		create: addMarkRoute, proxy: proxy{mark: 0x539},
	},
	{
		name:   "Istio ambient, reroute-virtual-interfaces, two rules for answers",
		rules:  func(link string) string { return ambientRules(link, true) },
		create: addMarkRoute, proxy: proxy{mark: 0x539, transparent: true},
	},
	{
		name:   "Istio ambient, as for Kata's l3forwarding",
		rules:  func(link string) string { return kataRules(link) },
		create: addMarkRoute, proxy: proxy{mark: 0x539, transparent: true},
	},
}

// addProxyAddress adds the IPv6 address from which the proxy connects to the application. For 127.0.0.6 no address
// is needed.
func addProxyAddress(n *nstest.Namespace) { n.IP("addr add ::6/128 dev lo nodad") }

// addMarkRoute has packets with the mesh's mark delivered to sockets of the namespace, whatever their destination.
func addMarkRoute(n *nstest.Namespace) {
	for _, family := range []string{"-4", "-6"} {
		n.IP(family + " rule add fwmark 0x111/0xfff pref 32764 lookup 100")
	}
	n.IP("route add local 0.0.0.0/0 dev lo table 100")
	n.IP("-6 route add local ::/0 dev lo table 100")
}

// sidecarRules are the sidecar's: all ports in and out. link is a value of the annotation
// istio.io/reroute-virtual-interfaces, empty without the annotation.
func sidecarRules(link string) string {
	virtual := ""
	if link != "" {
		virtual = fmt.Sprintf("-A PREROUTING -i %[1]s -j ISTIO_REDIRECT\n-A PREROUTING -i %[1]s -j RETURN\n", link)
	}
	return `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:ISTIO_INBOUND - [0:0]
:ISTIO_REDIRECT - [0:0]
:ISTIO_IN_REDIRECT - [0:0]
:ISTIO_OUTPUT - [0:0]
` + virtual + `-A PREROUTING -p tcp -j ISTIO_INBOUND
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp --dport 15090 -j RETURN
-A ISTIO_INBOUND -p tcp --dport 15021 -j RETURN
-A ISTIO_INBOUND -p tcp --dport 15020 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -o lo -s 127.0.0.6/32 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
COMMIT
`
}

// ambientRules are those of ambient mode in the pod's namespace. The kubelet's probes come from 169.254.7.127.
//
// answers adds two rules that are not Istio's. The proxy connects to the guest from a client's address, and the guest's
// answers would be routed to the client: they get the mark by which Istio has a process's answers delivered to the
// proxy.
func ambientRules(link string, answers bool) string {
	virtual, marked := "", ""
	if answers {
		marked = "-A OUTPUT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x1000/0x1000\n" +
			"-A PREROUTING -i " + link + " -m connmark --mark 0x1000/0x1000 -j MARK --set-xmark 0x111/0xfff\n"
	}
	if link != "" {
		virtual = fmt.Sprintf("-A ISTIO_PRERT -i %[1]s -p tcp -j REDIRECT --to-ports 15001\n-A ISTIO_PRERT -i %[1]s -p tcp -j RETURN\n", link)
	}
	return `*mangle
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
` + marked + `COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A PREROUTING -j ISTIO_PRERT
` + virtual + `-A ISTIO_PRERT -s 169.254.7.127 -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT -d 169.254.7.127 -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
`
}

// kataRules are those of ambient mode for a VM of Kata whose address the namespace routes to the guest
// (cni/pkg/iptables/iptables_kata.go). Istio creates them for IPv4 and Kata's tap alone. These are for both families
// and for the tap given.
func kataRules(link string) string {
	return `*mangle
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -s 169.254.7.127 -p tcp -j ACCEPT
-A ISTIO_PRERT -i eth0 -p tcp -j MARK --set-xmark 0x111/0xfff
-A ISTIO_PRERT -p tcp -m socket -j MARK --set-xmark 0x111/0xfff
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A PREROUTING -j ISTIO_PRERT
-A ISTIO_PRERT -i ` + link + ` -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_PRERT -s 169.254.7.127 -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
COMMIT
`
}

// proxy hands on TCP connections as Istio's proxies do. It adds "by the proxy" to the first line of who answers.
type proxy struct {
	// mark is the mark of the proxy's packets; 0: none. A proxy with a mark has HBONE's port open.
	mark int
	// transparent: the proxy connects from the client's address, to the application and for the application. Otherwise
	// it connects from an address of the kernel's choice, and without a mark to the application from 127.0.0.6 and ::6.
	transparent bool
}

// byProxy is what a proxy adds to the first line of the side that answers.
const byProxy = " by the proxy"

// start serves in the namespace until the test ends.
func (p proxy) start(t testing.TB, n *nstest.Namespace) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	serve := func(port int, handle func(ctx context.Context, n *nstest.Namespace, c *net.TCPConn) error) {
		for _, network := range []string{"tcp4", "tcp6"} {
			var listener net.Listener
			err := asMeshUser(n, func() (err error) {
				config := net.ListenConfig{Control: p.control(port == meshIn || port == meshTunnel)}
				listener, err = config.Listen(ctx, network, fmt.Sprintf(":%d", port))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			context.AfterFunc(ctx, func() { listener.Close() })
			serving.Go(func() {
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					serving.Go(func() {
						defer c.Close()
						defer context.AfterFunc(ctx, func() { c.Close() })()
						_ = handle(ctx, n, c.(*net.TCPConn)) // a client whose connection fails asks again
					})
				}
			})
		}
	}
	serve(meshOut, p.out)
	serve(meshIn, p.in)
	serve(meshHealth, func(_ context.Context, _ *nstest.Namespace, c *net.TCPConn) error {
		if _, err := fmt.Fprintf(c, "the proxy sees %v\n", c.RemoteAddr()); err != nil {
			return err
		}
		_, err := io.Copy(c, c)
		return err
	})
	if p.mark != 0 {
		serve(meshTunnel, p.tunnel)
	}
}

// asMeshUser calls f in the namespace as the mesh's user. A socket has the user of the thread that opens it.
func asMeshUser(n *nstest.Namespace, f func() error) error {
	return netns.Do(n.File, func() error {
		// No test works on such a thread as another user: it ends with the call.
		_, err := unix.SetfsuidRetUid(meshUser)
		if _, gerr := unix.SetfsgidRetGid(meshUser); err != nil || gerr != nil {
			return errors.Join(err, gerr)
		}
		defer unix.SetfsuidRetUid(0)
		defer unix.SetfsgidRetGid(0)
		return f()
	})
}

// control sets the proxy's socket options.
func (p proxy) control(transparent bool) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) (err error) {
		ctlErr := c.Control(func(fd uintptr) {
			if p.mark != 0 {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, p.mark)
			}
			if p.transparent && transparent {
				level, option := unix.SOL_IP, unix.IP_TRANSPARENT
				if strings.HasSuffix(network, "6") {
					level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
				}
				err = errors.Join(err, unix.SetsockoptInt(int(fd), level, option, 1))
			}
		})
		return errors.Join(ctlErr, err)
	}
}

// dial connects from an address; an invalid one: the kernel's choice.
func (p proxy) dial(ctx context.Context, n *nstest.Namespace, from netip.AddrPort, to netip.AddrPort) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	d := net.Dialer{Control: p.control(from.IsValid())}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	err = asMeshUser(n, func() (err error) {
		c, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	return c, err
}

// out hands on a connection of the application.
func (p proxy) out(ctx context.Context, n *nstest.Namespace, c *net.TCPConn) error {
	to, err := originalDestination(c)
	if err != nil {
		return err
	}
	from := netip.AddrPort{}
	if p.transparent { // ztunnel's proxy_to_tcp (src/proxy/outbound.rs)
		from = clientOf(c)
	}
	return p.relay(ctx, n, c, from, to)
}

// in hands on a connection to the application.
func (p proxy) in(ctx context.Context, n *nstest.Namespace, c *net.TCPConn) error {
	to, err := originalDestination(c)
	if err != nil {
		return err
	}
	return p.relay(ctx, n, c, p.source(c, to), to)
}

// tunnel hands on a connection that another proxy opens: the first line says to where.
func (p proxy) tunnel(ctx context.Context, n *nstest.Namespace, c *net.TCPConn) error {
	line, err := readLine(c)
	if err != nil {
		return err
	}
	to, err := netip.ParseAddrPort(line)
	if err != nil {
		return err
	}
	return p.relay(ctx, n, c, p.source(c, to), to)
}

// clientOf is the address of who has opened the connection, with any port.
func clientOf(c *net.TCPConn) netip.AddrPort {
	return netip.AddrPortFrom(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), 0)
}

// source is the address from which the proxy connects to the application.
func (p proxy) source(c *net.TCPConn, to netip.AddrPort) netip.AddrPort {
	switch {
	case p.transparent:
		return clientOf(c)
	case p.mark != 0:
		return netip.AddrPort{}
	case to.Addr().Is4():
		return netip.AddrPortFrom(addr("127.0.0.6"), 0)
	}
	return netip.AddrPortFrom(addr("::6"), 0)
}

// relay connects and copies both ways until both sides have ended.
func (p proxy) relay(ctx context.Context, n *nstest.Namespace, c *net.TCPConn, from, to netip.AddrPort) error {
	if to.Port() >= meshOut && to.Port() <= meshIn {
		return fmt.Errorf("%v to %v: the proxy's own port", c.RemoteAddr(), to) // a loop
	}
	upstream, err := p.dial(ctx, n, from, to)
	if err != nil {
		return err
	}
	defer upstream.Close()
	defer context.AfterFunc(ctx, func() { upstream.Close() })()
	line, err := readLine(upstream)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "%s%s\n", line, byProxy); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(upstream, c)
		sent <- errors.Join(err, upstream.(*net.TCPConn).CloseWrite())
	}()
	_, err = io.Copy(c, upstream)
	c.Close()
	return errors.Join(err, <-sent)
}

// readLine reads a line, and nothing of what follows.
func readLine(r io.Reader) (string, error) {
	line, err := bufio.NewReaderSize(oneByte{r}, 16).ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// oneByte reads one byte at a time.
type oneByte struct{ io.Reader }

func (o oneByte) Read(b []byte) (int, error) { return o.Reader.Read(b[:1]) }

// originalDestination is the destination that a connection had before REDIRECT.
func originalDestination(c *net.TCPConn) (to netip.AddrPort, err error) {
	const option = 80 // SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST: linux/netfilter_ipv4.h
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	four := c.LocalAddr().(*net.TCPAddr).IP.To4() != nil
	ctlErr := raw.Control(func(fd uintptr) {
		if four {
			var answer *unix.IPv6Mreq // room for a struct sockaddr_in
			if answer, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, option); err == nil {
				b := answer.Multiaddr
				to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
			}
			return
		}
		var answer *unix.IPv6MTUInfo // begins with a struct sockaddr_in6
		if answer, err = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, option); err == nil {
			port := answer.Addr.Port // in the network's order
			to = netip.AddrPortFrom(netip.AddrFrom16(answer.Addr.Addr), port<<8|port>>8)
		}
	})
	return to, errors.Join(ctlErr, os.NewSyscallError("getsockopt", err))
}
