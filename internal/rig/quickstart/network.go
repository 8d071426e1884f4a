package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
)

// The addresses of the pod, of its gateway, and of a host behind the gateway.
var (
	pod4, pod6         = netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("fd00:244:1::7")
	gateway4, gateway6 = netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:244:1::1")
	beyond4, beyond6   = netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:9::9")
)

// namespace is a network namespace without a name. It ends when its file is closed.
type namespace struct{ file *os.File }

func newNamespace() (*namespace, error) {
	type result struct {
		file *os.File
		err  error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{nil, fmt.Errorf("unshare: %w", err)}
			return
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		made <- result{file, err}
	}()
	r := <-made
	return &namespace{r.file}, r.err
}

func (n *namespace) close() error { return n.file.Close() }

// withHandle calls f on a thread in the namespace, with a netlink handle.
func (n *namespace) withHandle(f func(*netlink.Handle) error) error {
	return netns.Do(n.file, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h)
	})
}

// layNetwork creates a network like a CNI plugin's: a veth between the pod and the world, addresses and default
// routes.
func layNetwork() (pod, world *namespace, err error) {
	if pod, err = newNamespace(); err != nil {
		return nil, nil, err
	}
	if world, err = newNamespace(); err != nil {
		return nil, nil, errors.Join(err, pod.close())
	}
	err = errors.Join(netns.Do(pod.file, disableDAD), netns.Do(world.file, disableDAD), world.withHandle(func(h *netlink.Handle) error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.MTU = "pod", 1450
		veth := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsFd(pod.file.Fd())}
		return errors.Join(
			h.LinkAdd(veth),
			addAddresses(h, "lo", netip.PrefixFrom(beyond4, 32), netip.PrefixFrom(beyond6, 128)),
			addAddresses(h, "pod", netip.PrefixFrom(gateway4, 24), netip.PrefixFrom(gateway6, 64)),
		)
	}))
	if err == nil {
		err = pod.withHandle(func(h *netlink.Handle) error {
			err := errors.Join(addAddresses(h, "lo"),
				addAddresses(h, "eth0", netip.PrefixFrom(pod4, 24), netip.PrefixFrom(pod6, 64)))
			for _, gateway := range []netip.Addr{gateway4, gateway6} {
				if err == nil {
					err = h.RouteAdd(&netlink.Route{Gw: gateway.AsSlice(), Dst: defaultDestination(gateway)})
				}
			}
			return err
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, pod.close(), world.close())
	}
	return pod, world, nil
}

// disableDAD switches duplicate address detection off. It takes two seconds, and there is no other station.
func disableDAD() error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv6/conf/all/accept_dad", []byte("0"), 0),
		os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0),
	)
}

func defaultDestination(a netip.Addr) *net.IPNet {
	bits := a.BitLen()
	return &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
}

// addAddresses sets a link up and adds addresses.
func addAddresses(h *netlink.Handle, name string, list ...netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	for _, p := range list {
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: mask}}); err != nil {
			return err
		}
	}
	return nil
}

// describe returns the links, addresses and routes, like a short ip(8).
func (n *namespace) describe() (string, error) {
	var b strings.Builder
	err := n.withHandle(func(h *netlink.Handle) error {
		links, err := h.LinkList()
		if err != nil {
			return err
		}
		names := map[int]string{}
		for _, l := range links {
			names[l.Attrs().Index] = l.Attrs().Name
		}
		for _, l := range links {
			a := l.Attrs()
			if a.Name == "lo" {
				continue
			}
			state := "down"
			if a.Flags&net.FlagUp != 0 {
				state = "up"
			}
			fmt.Fprintf(&b, "%-10s %-4s %s mtu %d %s", a.Name, state, a.HardwareAddr, a.MTU, l.Type())
			if master, ok := names[a.MasterIndex]; ok {
				b.WriteString(" master " + master)
			}
			b.WriteByte('\n')
			list, err := h.AddrList(l, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, address := range list {
				if !address.IP.IsLinkLocalUnicast() {
					fmt.Fprintf(&b, "           %s\n", address.IPNet)
				}
			}
		}
		routes, err := h.RouteList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast() {
				continue
			}
			text := "default"
			if ones, _ := r.Dst.Mask.Size(); ones > 0 {
				text = r.Dst.String()
			}
			if r.Gw != nil {
				text += " via " + r.Gw.String()
			}
			fmt.Fprintf(&b, "%s dev %s\n", text, names[r.LinkIndex])
		}
		return nil
	})
	return b.String(), err
}

// waitRestored waits until the namespace is as before, and prints it.
func (n *namespace) waitRestored(ctx context.Context, want string) error {
	for range 100 {
		now, err := n.describe()
		if err != nil {
			return err
		}
		if now == want {
			quote(now)
			step("that is what it was before")
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	now, err := n.describe()
	return errors.Join(fmt.Errorf("the namespace is not as it was, but:\n%s", now), err)
}

// ask connects by TCP and returns the line that the server sends.
func (n *namespace) ask(to netip.AddrPort) (answer string, err error) {
	err = netns.Do(n.file, func() error {
		conn, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		answer, err = bufio.NewReader(conn).ReadString('\n')
		return err
	})
	return strings.TrimSpace(answer), err
}

// ping sends an echo request and waits for the answer.
func (n *namespace) ping(to netip.Addr) error {
	network, any, protocol := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, any, protocol = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	return netns.Do(n.file, func() error {
		conn, err := icmp.ListenPacket(network, any)
		if err != nil {
			return err
		}
		defer conn.Close()
		echo := icmp.Message{Type: request, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte("guestwire")}}
		packet, err := echo.Marshal(nil)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		buffer := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return err
			}
			m, err := icmp.ParseMessage(protocol, buffer[:size])
			if err == nil && m.Type == reply && from.String() == to.String() {
				return nil
			}
		}
	})
}
