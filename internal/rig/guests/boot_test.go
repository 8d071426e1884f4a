package guests_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase2"
)

// bootConfig is the Setup configuration for both boot clients.
func bootConfig(n nstest.Network, b infra.Binding, uid, gid int) wired.NIC {
	c := configOf(n, "eth0", b, uid, gid)
	c.DNS = &cache.DNS{Servers: []netip.Addr{nstest.Beyond4, nstest.Beyond6}, Search: []string{"example.org", "example.net"}}
	c.Options = cache.Options{Hostname: "guest1", NTP: []netip.Addr{nstest.Beyond4}, TFTPServer: nstest.Beyond4.String(), BootFile: "boot.ipxe"}
	c.Device.BootOrder = 1
	return c
}

// setupAndOpen wires the pod and returns its VM and the only record.
func setupAndOpen(ctx context.Context, t *testing.T, c wired.NIC) (*phase2.VM, cache.Record) {
	t.Helper()
	if _, err := c.Setup(ctx); err != nil {
		t.Fatal(err)
	}
	network, err := phase2.Open(c.State)
	if err != nil {
		t.Fatal(err)
	}
	return network, network.Records()[0]
}

// stopLauncher ends a launcher and checks that it has logged the leases.
func stopLauncher(t *testing.T, launcher *nstest.Process, leased ...netip.Addr) {
	t.Helper()
	launcher.Stop(t)
	for _, a := range leased {
		if !strings.Contains(launcher.Output.String(), "address="+a.String()+"\n") {
			t.Errorf("the launcher's log, without a lease of %v:\n%s", a, launcher.Output.String())
		}
	}
}

// bootNetwork is a network of a boot client, and what such a client is told there.
type bootNetwork struct {
	name    string
	binding infra.Binding
	create  func(t *testing.T) nstest.Network
	// Address and router of IPv4.
	address4 netip.Prefix
	router4  netip.Addr
	// Stations that answer a ping.
	stations []netip.Addr
	// Whom the guest sees when the world connects.
	peer4, peer6 netip.Addr
}

// besideGuest is the stand-in of a guest with the address nstest.Pod4 and a gateway outside of its network. The gateway
// forwards to the station that has this address.
var besideGuest = netip.MustParseAddr("10.244.1.6")

var bootNetworks = []bootNetwork{
	{
		name: "bridge", binding: infra.Bridge{}, create: func(t *testing.T) nstest.Network { return nstest.NewNetwork(t) },
		address4: netip.PrefixFrom(nstest.Pod4, 24), router4: nstest.Gateway4,
		stations: []netip.Addr{nstest.Gateway4, nstest.Gateway6, nstest.Beyond4, nstest.Beyond6},
		peer4:    nstest.Gateway4, peer6: nstest.Gateway6,
	},
	{
		name: "bridge-on-link", binding: infra.Bridge{}, create: func(t *testing.T) nstest.Network {
			n := createOnLink(t)
			n.World.IP(fmt.Sprintf("addr add %v/32 dev lo", besideGuest))
			return n
		},
		address4: netip.PrefixFrom(nstest.Pod4, 31), router4: besideGuest,
		stations: []netip.Addr{netip.MustParseAddr("169.254.1.1"), besideGuest, nstest.Beyond4, nstest.Beyond6},
		peer4:    netip.MustParseAddr("169.254.1.1"), peer6: nstest.Beyond6,
	},
	{
		name: "masquerade", binding: infra.Masquerade{}, create: func(t *testing.T) nstest.Network { return nstest.NewNetwork(t) },
		address4: netip.MustParsePrefix("10.0.2.2/24"), router4: netip.MustParseAddr("10.0.2.1"),
		stations: []netip.Addr{nstest.Gateway4, nstest.Gateway6, nstest.Beyond4, nstest.Beyond6},
		peer4:    nstest.Gateway4, peer6: nstest.Gateway6,
	},
}

// routedNetwork is a pod whose namespace routes. Its guest's gateway is outside of the guest's network, too.
var routedNetwork = bootNetwork{
	name: "routed", binding: infra.Routed{}, create: func(t *testing.T) nstest.Network { return nstest.NewNetwork(t) },
	address4: netip.PrefixFrom(nstest.Pod4, 31), router4: besideGuest,
	stations: []netip.Addr{nstest.Gateway4, nstest.Gateway6, nstest.Beyond4, nstest.Beyond6},
	peer4:    nstest.Gateway4, peer6: nstest.Gateway6,
}

// eachBoot runs the test in the networks of these names, or in all of bootNetworks with -clients all, side by side.
func eachBoot(t *testing.T, name string, few []string, test func(t *testing.T, network bootNetwork)) {
	t.Helper()
	eachOf(t, bootNetworks, name, few, test)
}

// eachOf is eachBoot with other networks.
func eachOf(t *testing.T, networks []bootNetwork, name string, few []string, test func(t *testing.T, network bootNetwork)) {
	t.Helper()
	for _, network := range networks {
		if *clients == "all" || slices.Contains(few, network.name) {
			t.Run(name+network.name, func(t *testing.T) {
				t.Parallel()
				test(t, network)
			})
		}
	}
}

// TestAutoconf tests the client in the Linux kernel: DHCPv4 by ip=dhcp on the command line, and router
// advertisements. The kernel does not renew a lease, so a second boot tests a second launcher. It does not
// speak DHCPv6, so the test adds the IPv6 address.
//
// The kernel's client cannot use a /32 mask. It takes 255.255.255.255 for no mask and guesses one from the
// address's class; it ignores classless routes; and it refuses a gateway outside the network.
func TestAutoconf(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	eachOf(t, append(slices.Clone(bootNetworks), routedNetwork), "", []string{"bridge-on-link"}, func(t *testing.T, network bootNetwork) {
		ctx := bootTime(t)
		n := network.create(t)
		_, r := setupAndOpen(ctx, t, bootConfig(n, network.binding, uid, gid))
		nic := newNIC(t, r, qemu.Options{})
		delete(nic.Device, "host_mtu") // so that the guest's MTU is the lease's
		boots := 1
		if network.name == "bridge" {
			boots = 2
		}
		for range boots {
			launcher := n.Serve(t, uid)
			g, err := vm.BootQEMU(ctx, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Boot: vm.BootAutoconf}, nic)
			if err != nil {
				launcher.Stop(t)
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			checkAutoconf(ctx, t, g, n, r, network)
			if err := g.Destroy(); err != nil {
				t.Error(err)
			}
			stopLauncher(t, launcher, r.IPv4.Address.Addr())
		}
	})
}

// checkAutoconf checks addresses, routes, DNS and connections of a guest that vm.BootAutoconf has booted.
func checkAutoconf(ctx context.Context, t *testing.T, g *vm.Guest, n nstest.Network, r cache.Record, network bootNetwork) {
	t.Helper()
	// The advertisement may come later than the boot. All that it says is in force at once.
	if out, err := g.Until(ctx, "ip -6 route | grep ^default"); err != nil || !strings.Contains(out, fmt.Sprintf("via %v dev eth0 proto ra ", r.IPv6.Router.Address)) {
		t.Errorf("IPv6 default route %q, %v; want one via %v", out, err, r.IPv6.Router.Address)
	}
	onLink := ""
	if len(r.IPv6.OnLink) > 0 {
		onLink = fmt.Sprintf("%v dev eth0 ", r.IPv6.OnLink[0])
	}
	for command, want := range map[string]string{
		"ip -4 addr show dev eth0":           fmt.Sprintf("inet %v ", network.address4),
		"ip -4 route":                        fmt.Sprintf("default via %v dev eth0", network.router4),
		"ip link show dev eth0":              " mtu 1450 ",
		"cat /proc/net/pnp":                  "\ndomain example.org\nnameserver 198.51.100.9\nbootserver 198.51.100.9\n",
		"cat /proc/net/ipconfig/ntp_servers": "198.51.100.9\n",
		"ip -6 route show proto kernel":      onLink,
		fmt.Sprintf("ip -6 addr add %v/128 dev eth0 nodad", r.IPv6.Address): "",
	} {
		if out, err := g.Run(ctx, command); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %q, %v; want %q", command, out, err, want)
		}
	}
	for _, to := range network.stations {
		if err := g.Ping(ctx, to); err != nil {
			t.Errorf("guest to %v: %v", to, err)
		}
	}
	for to, peer := range map[netip.Addr]netip.Addr{nstest.Pod4: network.peer4, nstest.Pod6: network.peer6} {
		answer, err := ask(n.World, netip.AddrPortFrom(to, vm.AnswerPort))
		if err != nil || answer.Guest != "guest1" || answer.Peer.Addr() != peer {
			t.Errorf("world to %v: %+v, %v; want guest1 to answer and to see %v", to, answer, err, peer)
		}
	}
}

// TestIPXE boots from the network, as the <interface> element says. The iPXE of QEMU's ROM sends DHCPv4,
// DHCPv6 and router solicitations, fetches its boot file by TFTP or HTTP, and reports what it has learned.
// iPXE never renews a lease, so a second boot tests a second launcher.
//
// iPXE cannot use a /32 mask either: it then sends all frames to the Ethernet broadcast address, and no host
// answers TCP that arrives there.
func TestIPXE(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	eachBoot(t, "", []string{"bridge", "bridge-on-link"}, func(t *testing.T, network bootNetwork) {
		ctx := bootTime(t)
		n := network.create(t)
		script := bootScript + bootReport6 + bootReport4
		if network.name == "bridge-on-link" {
			// This iPXE learns an IPv6 router only together with a prefix on the link.
			script = bootScript + bootReport4
		}
		server := newBootServer(t, n.World, map[string][]byte{"/boot.ipxe": []byte(script)})
		c := bootConfig(n, network.binding, uid, gid)
		bootFile := "http://" + nstest.Beyond4.String() + "/boot.ipxe"
		if network.name == "bridge" {
			bootFile = "boot.ipxe" // by TFTP
		}
		c.Options.BootFile = bootFile
		opened, r := setupAndOpen(ctx, t, c)
		launcher := n.Serve(t, uid)
		g := bootLibvirt(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Boot: vm.BootNetwork}, opened)
		defer func() {
			if t.Failed() {
				launcher.Stop(t)
				t.Logf("console: %q\n%s", g.Console(), launcher.Output.String())
			}
		}()

		want := map[string]visit{
			"/boot.ipxe": {"/boot.ipxe", nstest.Pod4, url.Values{}},
			"/ipv4": {"/ipv4", nstest.Pod4, url.Values{
				"ip": {network.address4.Addr().String()}, "netmask": {netmask(network.address4).String()}, "gateway": {network.router4.String()},
				"dns": {nstest.Beyond4.String()}, "domain": {"example.org"}, "hostname": {"guest1"}, "mtu": {"1450"},
				"server": {nstest.Beyond4.String()}, "file": {bootFile},
			}},
			"/ipv6": {"/ipv6", nstest.Pod6, url.Values{
				"ip": {r.IPv6.Address.String()}, "gateway": {r.IPv6.Router.Address.String()}, "dns": {nstest.Beyond6.String()},
			}},
		}
		if network.name == "bridge-on-link" {
			delete(want, "/ipv6")
		}
		boots := func() {
			t.Helper()
			visits, err := server.boot(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(visits, want) {
				t.Errorf("iPXE's visits:\n%v, want\n%v", visits, want)
			}
			stopLauncher(t, launcher, r.IPv4.Address.Addr(), r.IPv6.Address)
		}
		boots()
		launcher = n.Serve(t, uid)
		server.next <- "autoboot net0"
		boots()
	})
}

// learned6 is where iPXE reports what it has learned, by IPv6. It is a unique local address: this iPXE
// cannot reach a global address from a unique local one.
var learned6 = netip.MustParseAddr("fd00:9::9")

// The lines of what iPXE boots. The last one asks the server for the next command.
var (
	bootScript  = "#!ipxe\n"
	bootReport6 = fmt.Sprintf("imgfetch http://[%v]/ipv6?ip=${net0/ip6}&gateway=${net0/gateway6}&dns=${net0/dns6}\n", learned6)
	bootReport4 = fmt.Sprintf("chain http://%v/ipv4?ip=${net0/ip}&netmask=${net0/netmask}&gateway=${net0/gateway}&dns=${net0/dns}"+
		"&domain=${net0/domain}&hostname=${hostname}&mtu=${net0/mtu}&server=${next-server}&file=${filename}\n", nstest.Beyond4)
)

// bootServer serves files by TFTP and HTTP, and receives what iPXE has learned.
type bootServer struct {
	ctx    context.Context // of the test
	world  *nstest.Namespace
	files  map[string][]byte // by path, with a slash first
	visits chan visit
	next   chan string // commands for iPXE
}

// visit is one request of iPXE.
type visit struct {
	Path    string
	From    netip.Addr
	Learned url.Values
}

// newBootServer starts a server of the files that runs in the namespace until the test ends.
func newBootServer(t *testing.T, world *nstest.Namespace, files map[string][]byte) *bootServer {
	t.Helper()
	world.IP("addr add " + learned6.String() + "/128 dev lo nodad")
	s := &bootServer{ctx: t.Context(), world: world, files: files, visits: make(chan visit), next: make(chan string)}
	var tftp *net.UDPConn
	var web [2]net.Listener
	err := netns.Do(world.File, func() error {
		var errs [3]error
		tftp, errs[0] = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(nstest.Beyond4, 69)))
		for i, a := range []netip.Addr{nstest.Beyond4, learned6} {
			web[i], errs[i+1] = net.Listen("tcp", netip.AddrPortFrom(a, 80).String())
		}
		return errors.Join(errs[:]...)
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	var serving sync.WaitGroup
	for _, l := range web {
		serving.Go(func() { server.Serve(l) })
	}
	serving.Go(func() {
		if err := s.serveTFTP(tftp); !errors.Is(err, net.ErrClosed) {
			t.Errorf("TFTP server: %v", err)
		}
	})
	t.Cleanup(func() {
		tftp.Close()
		server.Close()
		serving.Wait()
	})
	return s
}

// report passes a visit to the test.
func (s *bootServer) report(v visit) {
	select {
	case s.visits <- v:
	case <-s.ctx.Done():
	}
}

// ServeHTTP answers the requests for files, and those of bootScript.
func (s *bootServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.report(visit{r.URL.Path, netip.MustParseAddrPort(r.RemoteAddr).Addr(), r.URL.Query()})
	if file, ok := s.files[r.URL.Path]; ok {
		http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(file))
		return
	}
	switch r.URL.Path {
	case "/ipv4":
		select {
		case command := <-s.next:
			fmt.Fprintf(w, "#!ipxe\n%s\n", command)
		case <-s.ctx.Done():
		}
	case "/ipv6":
	default:
		http.NotFound(w, r)
	}
}

// serveTFTP answers each read request from a port of its own (RFC 1350). It knows the options blksize (RFC 2348) and
// tsize (RFC 2349).
func (s *bootServer) serveTFTP(l *net.UDPConn) error {
	for {
		request := make([]byte, 512)
		n, from, err := l.ReadFromUDPAddrPort(request)
		if err != nil {
			return err
		}
		words, isRead := bytes.CutPrefix(request[:n], []byte{0, 1})
		if !isRead {
			continue // an error that ends an earlier transfer
		}
		// The name, the mode, and pairs of options.
		fields := strings.Split(string(words), "\x00")
		path := "/" + strings.TrimPrefix(fields[0], "/")
		s.report(visit{path, from.Addr(), url.Values{}})
		err = netns.Do(s.world.File, func() error {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: nstest.Beyond4.AsSlice()}, net.UDPAddrFromAddrPort(from))
			if err != nil {
				return err
			}
			defer c.Close()
			file, ok := s.files[path]
			if !ok {
				_, err := c.Write([]byte("\x00\x05\x00\x01no such file\x00"))
				return err
			}
			return sendTFTP(c, file, fields[2:])
		})
		if err != nil {
			return err
		}
	}
}

// sendTFTP sends the file until the client stops to acknowledge.
func sendTFTP(c *net.UDPConn, file []byte, options []string) error {
	size := 512
	var accepted []byte
	for i := 0; i+1 < len(options); i += 2 {
		switch name := strings.ToLower(options[i]); name {
		case "blksize":
			if n, err := strconv.Atoi(options[i+1]); err == nil {
				size = min(n, 1400)
				accepted = fmt.Appendf(accepted, "%s\x00%d\x00", name, size)
			}
		case "tsize":
			accepted = fmt.Appendf(accepted, "%s\x00%d\x00", name, len(file))
		}
	}
	number := uint16(1)
	packet := append([]byte{0, 3, 0, 1}, file[:min(size, len(file))]...)
	if accepted != nil {
		number, packet = 0, append([]byte{0, 6}, accepted...)
	}
	answer := make([]byte, 512)
	for tries := 0; tries < 5; {
		if _, err := c.Write(packet); err != nil {
			return nil // the client has closed its port
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n, err := c.Read(answer)
		switch {
		case err != nil:
			tries++
			continue
		case n < 4 || answer[1] == 5:
			return nil
		case answer[1] != 4 || binary.BigEndian.Uint16(answer[2:]) != number:
			continue
		}
		if packet[1] == 3 {
			sent := len(packet) - 4
			file = file[sent:]
			if sent < size {
				return nil
			}
		}
		tries = 0
		number++
		packet = append(binary.BigEndian.AppendUint16([]byte{0, 3}, number), file[:min(size, len(file))]...)
	}
	return nil
}

// visit returns the next visit.
func (s *bootServer) visit(ctx context.Context) (visit, error) {
	select {
	case v := <-s.visits:
		return v, nil
	case <-ctx.Done():
		return visit{}, fmt.Errorf("wait for a visit: %w", ctx.Err())
	}
}

// netmask returns the mask of the prefix.
func netmask(p netip.Prefix) net.IP { return net.IP(net.CIDRMask(p.Bits(), 32)) }

// boot waits until iPXE asks for the next command, and returns the last visit of each path.
func (s *bootServer) boot(ctx context.Context) (map[string]visit, error) {
	visits := map[string]visit{}
	for {
		select {
		case v := <-s.visits:
			visits[v.Path] = v
			if v.Path == "/ipv4" {
				return visits, nil
			}
		case <-ctx.Done():
			return visits, fmt.Errorf("iPXE's boot: %w, visits so far: %v", ctx.Err(), visits)
		}
	}
}
