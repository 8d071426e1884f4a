package firewall_test

import (
	"context"
	"errors"
	"github.com/guestwire/guestwire/internal/nft"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestLostReports sends packets while the listener does not read: the reports that come and those that are said to be
// lost are all.
func TestLostReports(t *testing.T) {
	ns := withLinks(t, "lost")
	ns.IP("link set lo up")
	unlimited := firewall.Table{Family: firewall.Inet, Name: tableName, Chains: []firewall.Chain{
		{Name: "out", Type: "filter", Hook: firewall.Output, Rules: rules{
			rule(firewall.Log{Prefix: firewall.LogPrefix("net1", firewall.IPSpoof), Group: firewall.LogGroup}, firewall.Protocol{Number: firewall.ProtocolUDP}, port7),
			rule(firewall.Log{Prefix: firewall.LogPrefix("eth0", firewall.IPSpoof), Group: firewall.LogGroup}, firewall.Protocol{Number: firewall.ProtocolUDP}),
		}},
	}}
	apply(t, ns, unlimited)
	const packets = 20000
	var log *nft.DropLog
	send := func(port, count int) error {
		return netns.Do(ns.File, func() error {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			for range count {
				err := unix.Sendto(s, []byte("x"), 0, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
				if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
					return err
				}
			}
			return nil
		})
	}
	err := netns.Do(ns.File, func() (err error) {
		log, err = nft.OpenDropLog("eth0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := send(9, packets); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The kernel reports again when the listener has read all. The first such packets are also another NIC's.
	reported, lost, sent := 0, 0, make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := send(7, 1); err != nil {
				t.Error(err)
			}
		}
		sent <- n
	}()
	err = log.Follow(ctx, func(d nft.Drop) {
		if d.NIC != "eth0" || d.Reason != firewall.IPSpoof || d.EtherType != 0x0800 || len(d.Packet) < 20 || time.Since(d.Time) > time.Minute {
			t.Errorf("report %+v", d)
		}
		reported++
		lost += int(d.Lost)
		if d.Lost > 0 {
			cancel()
		}
	})
	cancel()
	if more := <-sent; err != nil || lost == 0 || reported+lost < packets || reported+lost > packets+2*more {
		t.Errorf("%d reports, %d lost, %v; want from %d to %d in all", reported, lost, err, packets, packets+2*more)
	}
}

var port7 = firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: 7, Last: 7}

// TestHasFwd: the kernel says that rules can forward frames, and nothing stays of the question.
func TestHasFwd(t *testing.T) {
	ns := nstest.New(t, "fwd")
	err := netns.Do(ns.File, func() error {
		k, err := kernel.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		if has, err := k.Tables.HasFwd(); err != nil || !has {
			t.Errorf("%t, %v; want rules that forward frames", has, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if tables := ns.Exec("nft", "list", "tables"); tables != "" {
		t.Errorf("after the question there is %s", tables)
	}
}

// TestHasLog: the kernel says that it has nflog groups, also while another process listens, and a second listener is
// refused.
func TestHasLog(t *testing.T) {
	ns := nstest.New(t, "log")
	err := netns.Do(ns.File, func() error {
		k, err := kernel.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		for range 2 {
			if has, err := k.Tables.HasLog(); err != nil || !has {
				t.Errorf("%t, %v; want nflog groups", has, err)
			}
		}
		log, err := nft.OpenDropLog("eth0")
		if err != nil {
			return err
		}
		defer log.Close()
		if has, err := k.Tables.HasLog(); err != nil || !has {
			t.Errorf("while another listens: %t, %v; want nflog groups", has, err)
		}
		if _, err := nft.OpenDropLog("eth0"); !errors.Is(err, nft.ErrListened) || !strings.Contains(err.Error(), "another FollowDrops") {
			t.Errorf("a second listener: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
