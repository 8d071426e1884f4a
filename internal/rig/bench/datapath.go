package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/wiring"
	"github.com/guestwire/guestwire/phase1"
)

// traffic is the number of frames and repetitions.
type traffic struct {
	sets, rounds      int // sets of fresh namespaces, and turns in each
	packets, segments int // bursts in a turn
}

// Limits of the guest filter's cost, of what the reasons of its drops add for a frame that passes, and of a router's cost for
// TCP without the filter, with and without flow tables in the kernel.
const (
	packetLimit  = 1.08
	tcpLimit     = 1.03
	reasonLimit  = 1.01
	routerLimit  = 1.35
	offloadLimit = 1.15
)

// measureDatapath prints what the guest filter costs per frame. A write to the tap, or to the other end of the pod's NIC,
// returns when the kernel has forwarded the frame, so its time is the frame's whole cost. Behind the pod a frame is dropped
// as early as possible, so that other costs do not hide the filter's.
func measureDatapath(ctx context.Context, w io.Writer, l traffic) (err error) {
	if l.sets < 1 || l.rounds < 1 || l.packets < 1 || l.segments < 1 {
		return errors.New("the traffic: want 1 or more of everything")
	}
	for _, program := range []string{"ip", "nft", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: make install, or install it", program)
		}
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// A move of the thread to another CPU would be measured too.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	fmt.Fprintf(w, "Frames of connections that are known, in microseconds each; TCP in segments of 64 KiB, as with offloads, or short: in the\n"+
		"shortest frames.\n"+
		"Linux %s, %d CPUs, %s; %d sets of fresh namespaces, %d rounds in each: medians, and the rounds' ratios: median and quartiles.\n\n",
		release(), runtime.NumCPU(), runtime.Version(), l.sets, l.rounds)
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Routed{}} {
		if err := l.compare(ctx, w, dir, binding); err != nil {
			return fmt.Errorf("%s: %w", binding.Kind(), err)
		}
	}
	return nil
}

// compare measures a binding and prints its tables.
func (l traffic) compare(ctx context.Context, w io.Writer, dir string, binding infra.Binding) error {
	routes, offloads := false, false // the namespace is the guest's router, and with a flow table
	ways := []func(context.Context, *pod) (*lane, error){
		func(ctx context.Context, p *pod) (*lane, error) {
			return newLoadedLane(ctx, p, binding, func(t firewall.Table) firewall.Table { return t })
		},
		func(ctx context.Context, p *pod) (*lane, error) {
			n, err := newWiredLane(ctx, p, binding, infra.Guard{Off: true})
			if err == nil {
				routes = n.next != nextHop
				offloads, err = p.hasFlowTable(ctx)
			}
			return n, err
		},
		newBareLane,
		func(ctx context.Context, p *pod) (*lane, error) {
			return newLoadedLane(ctx, p, binding, withoutReasons)
		},
	}
	flows := []flow{
		{name: "packets, IPv4"}, {name: "packets, IPv6", v6: true}, {name: "short TCP, IPv4", tcp: true, short: true},
		{name: "TCP, IPv4", tcp: true}, {name: "TCP, IPv6", v6: true, tcp: true},
	}
	took := make([][2][]float64, 2*len(flows)*len(ways)) // samples by flow, direction and way
	for set := range l.sets {
		if err := l.measureSet(ctx, dir, set, ways, flows, took); err != nil {
			return err
		}
	}
	table := func(title string, a, b int, names [2]string, packets, tcp float64) {
		var rows []comparison
		for i, f := range flows {
			for direction, from := range []string{"from", "to"} {
				r := comparison{name: f.name + ", " + from + " the guest", format: "%.3f", atMost: packets}
				for _, way := range []int{a, b} {
					r.values = append(r.values, took[i*len(ways)+way][direction])
				}
				if f.tcp && !f.short {
					r.atMost = tcp
				}
				rows = append(rows, r)
			}
		}
		printComparisons(w, binding.Kind()+": "+title, names[:], rows)
	}
	table("the guest filter", 0, 1, [2]string{"on", "off"}, packetLimit, tcpLimit)
	table("reasons of drops", 0, 3, [2]string{"with", "without"}, reasonLimit, reasonLimit)
	table("with it, to a tap and a bridge", 0, 2, [2]string{"on", "bare"}, 0, 0)
	title, tcp := "without it, to a tap and a bridge", 0.0
	switch {
	case offloads:
		title, tcp = "flow table, to a tap and a bridge", offloadLimit
	case routes:
		tcp = routerLimit
	}
	table(title, 1, 2, [2]string{"off", "bare"}, 0, tcp)
	return nil
}

// measureSet measures all ways with all flows in turn. Each way has a namespace of its own, in each set the next one, and
// no place in an order of its own, as a place alone can cost 1 or 2 %.
func (l traffic) measureSet(ctx context.Context, dir string, set int, ways []func(context.Context, *pod) (*lane, error), flows []flow, took [][2][]float64) (err error) {
	var pods []*pod
	lanes := make([]*lane, len(ways))
	defer func() {
		for _, n := range lanes {
			if n != nil {
				err = errors.Join(err, n.close())
			}
		}
		err = errors.Join(err, closePods(pods))
	}()
	for range ways {
		p, err := newPod(ctx, dir)
		if err != nil {
			return err
		}
		pods = append(pods, p)
	}
	for i, p := range pods {
		if err := p.waitSettled(ctx); err != nil {
			return err
		}
		way := (i + set) % len(ways)
		if lanes[way], err = ways[way](ctx, p); err != nil {
			return err
		}
	}
	for i, f := range flows {
		for _, at := range rand.Perm(len(lanes)) { // where a lane's frames lie in memory counts, too
			if err := lanes[at].openConnection(ctx, f); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
		count := l.packets
		if f.tcp && !f.short {
			count = l.segments
		}
		for round := -1; round < l.rounds; round++ {
			for _, turn := range rand.Perm(len(lanes)) {
				out, in, err := lanes[turn].turn(ctx, count)
				if err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
				if round >= 0 {
					at := &took[i*len(ways)+turn]
					at[0] = append(at[0], out)
					at[1] = append(at[1], in)
				}
			}
		}
		for _, n := range lanes {
			if err := n.checkArrived(count * burst * (l.rounds + 1)); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}

// lane is a pod with a client on its tap, and a socket at the other end of its NIC.
type lane struct {
	pod       *pod
	guest     *client
	network   int // a socket for sending
	mac, next cache.MAC
	source    [2]netip.Addr // IPv4, IPv6

	out, in []byte // frames of the present flow
	before  int    // number of frames that had arrived in the network before
}

// The next hops of podNIC.
var (
	nextHop     = cache.MAC{2, 0, 0, 0, 0, 1}
	destination = [2]netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:244:1::1")}
)

// newWiredLane wires a pod by phase1's Setup.
func newWiredLane(ctx context.Context, p *pod, binding infra.Binding, guard infra.Guard) (*lane, error) {
	n, err := wireLane(ctx, p, infra.Spec{Binding: binding, Guard: guard})
	if err != nil {
		return nil, err
	}
	return n, n.attach()
}

// wireLane is newWiredLane for a spec without its NIC and state directory, and leaves the tap to the caller.
func wireLane(ctx context.Context, p *pod, spec infra.Spec) (*lane, error) {
	spec.NIC, spec.State = nic, p.state
	if _, err := phase1.Setup(ctx, phase1.Config{NetNS: p.file, Dir: p.node(), Spec: spec}); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(p.state)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	record, err := cache.Read(root, nic)
	if err != nil {
		return nil, err
	}
	n := &lane{pod: p, mac: record.MAC, next: nextHop, source: [2]netip.Addr{record.IPv4.Address.Addr(), record.IPv6.Address}}
	if !record.GatewayMAC.IsZero() { // the namespace routes
		n.next = record.GatewayMAC
		// No station answers ARP or NS for the next hop, and no guest, so the entries are static.
		var known strings.Builder
		for i, a := range destination {
			fmt.Fprintf(&known, "neigh replace %v lladdr %v nud permanent dev %s\n", a, nextHop, nic)
			if spec.Binding.Kind() == (infra.Routed{}).Kind() {
				fmt.Fprintf(&known, "neigh replace %v lladdr %v nud permanent dev %s\n", n.source[i], n.mac, guestTap)
			}
		}
		if err := ip(ctx, known.String(), "-n", p.name); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// newLoadedLane wires a pod by phase1's Setup, and loads the nftables once more, as change returns them. Ways whose rules
// are compared load them alike, so that the rules lie in memory alike.
func newLoadedLane(ctx context.Context, p *pod, binding infra.Binding, change func(firewall.Table) firewall.Table) (*lane, error) {
	n, err := newWiredLane(ctx, p, binding, infra.Guard{})
	if err != nil {
		return nil, err
	}
	path, err := journalOf(p)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var journal wiring.Journal
	if err := json.Unmarshal(text, &journal); err != nil {
		return nil, err
	}
	plan, err := wiring.NewPlan(journal.Found, journal.Spec)
	if err != nil {
		return nil, err
	}
	return n, netns.Do(p.file, func() error {
		ns, err := kernel.Open()
		if err != nil {
			return err
		}
		defer ns.Close()
		now, err := ns.Snapshot(netstate.NamesFor(nic), nil, plan.Tables())
		if err != nil {
			return err
		}
		index := func(name string) int {
			l, _ := now.Named(name)
			return l.Index
		}
		var ops []netstate.Op
		for _, t := range plan.Tables() {
			ops = append(ops, netstate.TableDel{Family: t.Family, Name: t.Name}, netstate.TableSet{Table: change(t).Resolve(index)})
		}
		return ns.Apply(ctx, ops)
	})
}

// hasFlowTable reports whether established connections pass the pod by a flow table of nftables.
func (p *pod) hasFlowTable(ctx context.Context) (bool, error) {
	out, err := exec.CommandContext(ctx, "nsenter", "--net="+p.path(), "nft", "list", "flowtables").CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("flow tables of %s: %w: %s", p.name, err, out)
	}
	return strings.Contains(string(out), "flowtable"), nil
}

// withoutReasons returns a copy of the table that drops at once, without a counter and a log, where the table goes to
// the chain of a reason.
func withoutReasons(t firewall.Table) firewall.Table {
	var chains []firewall.Chain
	for _, c := range t.Chains {
		if _, ok := firewall.ReasonOf(c.Name); ok {
			continue
		}
		c.Rules = slices.Clone(c.Rules)
		for i, r := range c.Rules {
			if to, ok := r.Verdict.(firewall.Goto); ok {
				if _, ok := firewall.ReasonOf(to.Chain); ok {
					c.Rules[i].Verdict = firewall.Drop{}
				}
			}
		}
		chains = append(chains, c)
	}
	t.Chains = chains
	return t
}

// bareNetwork is the minimal bridge between a tap and a NIC. The guest has the NIC's address.
const bareNetwork = `addr flush dev ` + nic + `
link set ` + nic + ` address 02:00:00:00:00:08
link add eth0-br type bridge forward_delay 0 mcast_snooping 0
tuntap add ` + guestTap + ` mode tap vnet_hdr
link set ` + guestTap + ` master eth0-br
link set ` + nic + ` master eth0-br
link set ` + guestTap + ` type bridge_slave learning off
link set ` + nic + ` type bridge_slave learning off
link set eth0-br up
link set ` + guestTap + ` up
`

func newBareLane(ctx context.Context, p *pod) (*lane, error) {
	n, err := bareLane(ctx, p, bareNetwork)
	if err != nil {
		return nil, err
	}
	return n, n.attach()
}

// bareLane is newBareLane for another batch of ip(8), and leaves the tap to the caller.
func bareLane(ctx context.Context, p *pod, network string) (*lane, error) {
	n := &lane{pod: p, mac: guestMAC, next: nextHop, source: [2]netip.Addr{guestIPv4, guestIPv6}}
	if err := ip(ctx, network, "-n", p.name); err != nil {
		return nil, err
	}
	err := netns.Do(p.file, func() error { // as Setup does
		for _, tables := range []string{"iptables", "ip6tables", "arptables"} {
			err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+tables, []byte("0"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// attach attaches to the tap like QEMU with a guest that supports all offloads.
func (n *lane) attach() error {
	n.guest = &client{fd: -1, in: make([]byte, 1<<17)}
	var err error
	if n.guest.fd, err = openTap(n.pod.file, guestTap); err != nil {
		return fmt.Errorf("pod %s: %w", n.pod.name, err)
	}
	if n.network, err = n.pod.packetSocket(0); err != nil {
		return errors.Join(err, unix.Close(n.guest.fd))
	}
	return nil
}

// openTap opens a tap of the namespace, with all offloads.
func openTap(namespace *os.File, name string) (int, error) {
	fds, err := openQueues(namespace, name, 1)
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// openQueues opens the queues of a tap of the namespace, with all offloads.
func openQueues(namespace *os.File, name string, queues int) (fds []int, err error) {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	err = netns.Do(namespace, func() error {
		for range queues {
			fd, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			fds = append(fds, fd)
			ifr, err := unix.NewIfreq(name)
			if err != nil {
				return err
			}
			ifr.SetUint16(flags)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
				return err
			}
			if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return nil, fmt.Errorf("attach to tap %s: %w", name, err)
	}
	return fds, nil
}

func (n *lane) close() error { return errors.Join(n.guest.close(), unix.Close(n.network)) }

// packetSocket opens a packet socket at the other end of the NIC, with offloads. With protocol 0 it receives nothing.
func (p *pod) packetSocket(protocol uint16) (fd int, err error) {
	world, err := os.Open(namespacePath("world"))
	if err != nil {
		return -1, err
	}
	defer world.Close()
	return fd, netns.Do(world, func() error {
		link, err := net.InterfaceByName(p.peer)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
		if err == nil {
			protocol = binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, protocol))
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: protocol})
		}
		if err != nil {
			return errors.Join(fmt.Errorf("packet socket on %s: %w", p.peer, err), unix.Close(fd))
		}
		return nil
	})
}

// received returns the number of frames that have arrived at the other end of the NIC.
func (p *pod) received() (count int, err error) {
	world, err := os.Open(namespacePath("world"))
	if err != nil {
		return 0, err
	}
	defer world.Close()
	return count, netns.Do(world, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if name, counts, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == p.peer {
				var octets int
				_, err := fmt.Sscan(counts, &octets, &count)
				return err
			}
		}
		return fmt.Errorf("%s is not in /proc/net/dev", p.peer)
	})
}

// openConnection checks that a flow's frames pass in both directions, so that connection tracking knows the connection,
// and stores the frames for the turns.
func (n *lane) openConnection(ctx context.Context, f flow) error {
	n.out = f.frame(n)
	seen, err := n.pod.packetSocket(unix.ETH_P_ALL)
	if err != nil {
		return err
	}
	network := &client{fd: seen, in: make([]byte, 1<<17)}
	defer network.close()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
		if err := n.guest.send(n.out); err != nil && !errors.Is(err, unix.EIO) { // the link is not up yet
			return err
		}
		frame, err := network.receiveFlow(f, serverPort, f.client())
		if err != nil {
			return err
		}
		if frame == nil {
			continue
		}
		n.in = f.answer(frame)
		if _, err := unix.Write(n.network, n.in); err != nil {
			return fmt.Errorf("send to %s: %w", n.pod.peer, err)
		}
		if frame, err = n.guest.receiveFlow(f, f.client(), serverPort); err != nil {
			return err
		}
		if frame != nil {
			n.before, err = n.pod.received()
			return err
		}
	}
	return fmt.Errorf("no frame and its answer came through %s: %w", n.pod.name, errors.Join(context.Cause(ctx), os.ErrDeadlineExceeded))
}

// receiveFlow waits 200 ms for a frame of the flow with these ports, and returns nil if none comes.
func (c *client) receiveFlow(f flow, to, from uint16) ([]byte, error) {
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
		frame, err := c.receive(time.Until(end))
		if err != nil {
			return nil, err
		}
		if f.matches(frame, to, from) {
			return slices.Clone(frame), nil
		}
	}
	return nil, nil
}

// burst is the number of frames that are timed together. It is small, so that most bursts end before the scheduler runs
// another thread.
const burst = 8

// turn sends count bursts in each direction, and returns the median of the microseconds per frame.
func (n *lane) turn(ctx context.Context, count int) (out, in float64, err error) {
	if err := n.guest.drain(); err != nil {
		return 0, 0, err
	}
	out, err = bursts(count, n.sendBurst)
	if err != nil {
		return 0, 0, err
	}
	in, err = bursts(count, n.receiveBurst)
	return out, in, errors.Join(err, context.Cause(ctx))
}

func (n *lane) sendBurst() error {
	for range burst {
		if _, err := unix.Write(n.guest.fd, n.out); err != nil {
			return fmt.Errorf("write to %s of %s: %w", guestTap, n.pod.name, err)
		}
	}
	return nil
}

// receiveBurst sends a burst to the guest, and waits for it there.
func (n *lane) receiveBurst() error {
	for range burst {
		if _, err := unix.Write(n.network, n.in); err != nil {
			return fmt.Errorf("send to %s: %w", n.pod.peer, err)
		}
	}
	for got := 0; got < burst; {
		frame, err := n.guest.receive(answerTimeout)
		if err != nil {
			return err
		}
		if frame == nil {
			return fmt.Errorf("of %d frames for a queue of the guest of %s, %d came", burst, n.pod.name, got)
		}
		if len(frame) == len(n.in) {
			got++
		}
	}
	return nil
}

// bursts sends count bursts by calls of one, and returns the median of the microseconds per frame.
func bursts(count int, one func() error) (float64, error) {
	var took []time.Duration
	for range count {
		start := time.Now()
		if err := one(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start))
	}
	return float64(median(took)) / float64(time.Microsecond) / burst, nil
}

// checkArrived returns an error unless count frames have arrived from the guest.
func (n *lane) checkArrived(count int) error {
	now, err := n.pod.received()
	if err == nil && now-n.before < count {
		err = fmt.Errorf("of %d frames of the guest of %s, %d came", count, n.pod.name, now-n.before)
	}
	return err
}

// flow is a connection of the guest.
type flow struct {
	name  string
	v6    bool
	tcp   bool
	short bool   // TCP without offloads, in the shortest frames
	port  uint16 // of the guest, after clientPort
}

const (
	vnetLen    = 10 // struct virtio_net_hdr, linux/virtio_net.h
	ipAt       = vnetLen + ethernetLen
	clientPort = 20000 // a masquerade keeps it: a port above could be one of a client in the namespace
	serverPort = 5201
)

func (f flow) client() uint16 { return clientPort + f.port }

// ports returns the offset of the ports in a frame.
func (f flow) ports() int {
	if f.v6 {
		return ipAt + header.IPv6MinimumSize
	}
	return ipAt + header.IPv4MinimumSize
}

// frame returns a frame of a guest that leaves checksums and segmentation to its device.
func (f flow) frame(n *lane) []byte {
	const mtu = 1500
	transport, protocol, checksumAt := header.UDPMinimumSize, header.UDPProtocolNumber, 6
	payload := 18 // for the shortest Ethernet frame
	if f.tcp {
		transport, protocol, checksumAt = header.TCPMinimumSize, header.TCPProtocolNumber, 16
	}
	segment := mtu - (f.ports() - ipAt) - transport
	switch {
	case f.short:
		payload = 6
	case f.tcp:
		payload = 44 * segment // whole segments, below 64 KiB
	}
	frame := make([]byte, f.ports()+transport+payload)
	if f.tcp && !f.short {
		frame[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
		if f.v6 {
			frame[1] = unix.VIRTIO_NET_HDR_GSO_TCPV6
		}
		binary.NativeEndian.PutUint16(frame[2:], uint16(f.ports()+transport-vnetLen))
		binary.NativeEndian.PutUint16(frame[4:], uint16(segment))
	}
	frame[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(frame[6:], uint16(f.ports()-vnetLen))
	binary.NativeEndian.PutUint16(frame[8:], uint16(checksumAt))

	ethernet := header.EthernetFields{SrcAddr: tcpip.LinkAddress(n.mac[:]), DstAddr: tcpip.LinkAddress(n.next[:]), Type: header.IPv4ProtocolNumber}
	var from, to tcpip.Address
	if f.v6 {
		ethernet.Type = header.IPv6ProtocolNumber
		from, to = tcpip.AddrFrom16(n.source[1].As16()), tcpip.AddrFrom16(destination[1].As16())
		header.IPv6(frame[ipAt:]).Encode(&header.IPv6Fields{
			PayloadLength: uint16(transport + payload), TransportProtocol: protocol, HopLimit: 64, SrcAddr: from, DstAddr: to,
		})
	} else {
		from, to = tcpip.AddrFrom4(n.source[0].As4()), tcpip.AddrFrom4(destination[0].As4())
		packet := header.IPv4(frame[ipAt:])
		packet.Encode(&header.IPv4Fields{TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(protocol), SrcAddr: from, DstAddr: to})
		packet.SetChecksum(^packet.CalculateChecksum())
	}
	header.Ethernet(frame[vnetLen:]).Encode(&ethernet)
	sum := header.PseudoHeaderChecksum(protocol, from, to, uint16(transport+payload))
	if f.tcp {
		// Question and answer have the same sequence numbers, so answer only exchanges the addresses and ports.
		header.TCP(frame[f.ports():]).Encode(&header.TCPFields{
			SrcPort: f.client(), DstPort: serverPort, SeqNum: 1 << 20, AckNum: 1 << 20,
			DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagAck, WindowSize: 65535, Checksum: sum,
		})
	} else {
		header.UDP(frame[f.ports():]).Encode(&header.UDPFields{SrcPort: f.client(), DstPort: serverPort, Length: uint16(transport + payload), Checksum: sum})
	}
	return frame
}

// matches reports whether the frame belongs to the flow, with these ports.
func (f flow) matches(frame []byte, to, from uint16) bool {
	return len(frame) > f.ports()+4 && isIPv6(frame[vnetLen:]) == f.v6 &&
		binary.BigEndian.Uint16(frame[f.ports():]) == from && binary.BigEndian.Uint16(frame[f.ports()+2:]) == to
}

// answer returns the frame with source and destination exchanged, which keeps the checksums.
func (f flow) answer(frame []byte) []byte {
	address, size := ipAt+12, 4
	if f.v6 {
		address, size = ipAt+8, 16
	}
	for _, field := range []struct{ at, size int }{{vnetLen, 6}, {address, size}, {f.ports(), 2}} {
		a, b := frame[field.at:field.at+field.size], frame[field.at+field.size:field.at+2*field.size]
		for i := range a {
			a[i], b[i] = b[i], a[i]
		}
	}
	return frame
}
