package kernel

import (
	"net"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// tapReport is the kernel's message of a tap.
func tapReport() []byte {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("tun"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(tunOwner, nl.Uint32Attr(107))
	data.AddRtAttr(tunGroup, nl.Uint32Attr(108))
	data.AddRtAttr(tunType, []byte{unix.IFF_TAP})
	data.AddRtAttr(tunMultiQueue, []byte{1})
	reported := append(ifInfo(unix.AF_UNSPEC, 7).Serialize(), netlink.Attr32(unix.IFLA_TXQLEN, 16).Serialize()...)
	return append(reported, info.Serialize()...)
}

func TestParseTap(t *testing.T) {
	want := &netstate.Tap{Owner: infra.Owner{UID: 107, GID: 108}, MultiQueue: true}
	if l, err := parseLink(tapReport()); err != nil || !reflect.DeepEqual(l.Tap, want) || l.QueueLength != 16 {
		t.Errorf("have %+v, a queue of %d, %v; want %+v, 16", l.Tap, l.QueueLength, err, want)
	}
}

// TestParseUse: the queues that are switched off count as well.
func TestParseUse(t *testing.T) {
	reported := tapReport()
	if carrier, queues, err := parseUse(reported); err != nil || carrier || queues != 0 {
		t.Errorf("nothing said: %t, %d, %v", carrier, queues, err)
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(tunQueues, nl.Uint32Attr(2))
	data.AddRtAttr(tunDisabled, nl.Uint32Attr(1))
	reported = append(reported, nl.NewRtAttr(unix.IFLA_CARRIER, []byte{1}).Serialize()...)
	reported = append(reported, info.Serialize()...)
	if carrier, queues, err := parseUse(reported); err != nil || !carrier || queues != 3 {
		t.Errorf("a carrier and three queues: %t, %d, %v", carrier, queues, err)
	}
}

// TestResetTapBeside: a VMM attaches to the tap after the look at who has it open, and before the reset attaches. The
// kernel lets both attach to a multi-queue tap. What the VMM has set stays.
func TestResetTapBeside(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	pod := nstest.New(t, "pod")
	for name, queues := range map[string]int{"single": 1, "wide": 2} {
		options := ""
		if queues > 1 {
			options = " multi_queue"
		}
		pod.IP("tuntap add " + name + " mode tap vnet_hdr" + options)
		err := inPod(pod, func(n *Namespace) error {
			link, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			reset := netstate.TapReset{Index: link.Index, Link: name, MultiQueue: queues > 1}
			vmm, err := tap.OpenQueues(name, queues)
			if err != nil {
				return err
			}
			if err := unix.IoctlSetInt(int(vmm[0].Fd()), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM); err != nil {
				return err
			}
			if err := resetTap(n.route, reset, netstate.Link{Index: link.Index, Name: name}); err != nil || !tap.Offloads(name) {
				t.Errorf("%s, with a VMM: %v, offloads %t; want none, true", name, err, tap.Offloads(name))
			}
			for _, f := range vmm {
				f.Close()
			}
			if err := resetTap(n.route, reset, netstate.Link{Index: link.Index, Name: name}); err != nil || tap.Offloads(name) {
				t.Errorf("%s, when the VMM has ended: %v, offloads %t; want none, false", name, err, tap.Offloads(name))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
