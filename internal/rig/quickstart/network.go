package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/lab"
)

// namespace is a network namespace that ends when its file is closed.
type namespace struct{ lab.Namespace }

func (n namespace) close() error { return n.File.Close() }

// layNetwork creates a network like a CNI plugin's: a veth between the pod and the world, addresses and default
// routes.
func layNetwork() (pod, world namespace, err error) {
	if pod.Namespace, err = lab.New(); err != nil {
		return pod, world, err
	}
	if world.Namespace, err = lab.New(); err != nil {
		return pod, world, errors.Join(err, pod.close())
	}
	if err = world.World(); err == nil {
		err = lab.Veth(pod.Namespace, world.Namespace)
	}
	if err != nil {
		err = errors.Join(err, pod.close(), world.close())
	}
	return pod, world, err
}

// describe returns the links, addresses and routes, like a short ip(8).
func (n namespace) describe() (string, error) {
	var b strings.Builder
	err := n.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
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
func (n namespace) waitRestored(ctx context.Context, want string) error {
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

// ping sends an echo request and waits for the answer.
func (n namespace) ping(to netip.Addr) error {
	network, any, protocol := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, any, protocol = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	return n.Do(func() error {
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
