package kernel

import (
	"reflect"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/netlinktest"
)

func TestSettingsRoundTrip(t *testing.T) {
	bridge, port := netstate.Settings{}, netstate.Settings{}
	for _, s := range bridgeSettings {
		bridge[s.name] = uint32(s.size) // another number for each size
	}
	for _, s := range portSettings {
		port[s.name] = uint32(s.size)
	}
	bridge["group_fwd_mask"], bridge["stp_state"] = 0xfffe, 0xfffefffd
	l, err := parseLink(body(t, netstate.BridgeSet{Settings: bridge}))
	if err != nil || !reflect.DeepEqual(l.Bridge, bridge) {
		t.Errorf("bridge:\nhave %v, %v\nwant %v", l.Bridge, err, bridge)
	}
	// What is sent in IFLA_PROTINFO is reported in IFLA_INFO_SLAVE_DATA.
	data := netlinktest.Inside(t, body(t, netstate.BridgePortSet{Settings: port}), unix.SizeofIfInfomsg, unix.IFLA_PROTINFO)
	for _, up := range []bool{true, false} {
		l, err := parseLink(portReport(data, up))
		want := port
		if !up {
			want = netstate.Settings{}
			for name, value := range port {
				if name != netstate.StateSetting {
					want[name] = value
				}
			}
		}
		if err != nil || !reflect.DeepEqual(l.BridgePort, want) {
			t.Errorf("port, carrier %t:\nhave %v, %v\nwant %v", up, l.BridgePort, err, want)
		}
	}
	if _, err := encodeOperation(netstate.BridgePortSet{Settings: netstate.Settings{"cost": 1}}); err == nil {
		t.Error("a setting without an attribute is sent")
	}
}

// portReport is the kernel's message of a bridge's port.
func portReport(settings []byte, up bool) []byte {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, settings)
	state := byte(2) // IF_OPER_DOWN
	if up {
		state = operUp
	}
	return slices.Concat(ifInfo(unix.AF_UNSPEC, 7).Serialize(), nl.NewRtAttr(unix.IFLA_OPERSTATE, []byte{state}).Serialize(), info.Serialize())
}

// TestSettingSize: a setting of another size than is known is an error, as its value could be anything.
func TestSettingSize(t *testing.T) {
	for _, size := range []int{0, 2, 4} {
		if _, err := parseSettings(nl.NewRtAttr(nl.IFLA_BRPORT_LEARNING, make([]byte, size)).Serialize(), portSettings); err == nil {
			t.Errorf("%d octets: no error", size)
		}
	}
}
