package dhcp

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
)

// TestStations: the responder follows a gateway to another MAC if the known one does not answer any more, keeps what it
// has found when the same record comes again, and takes the MAC of a newer record. Frames that can have filled the
// port's queue are no silence of the known MAC.
func TestStations(t *testing.T) {
	global, standIn, moved := addr("fd00:10:244::1"), eui64.LinkLocal(gatewayMAC), cache.MAC{2, 0, 0, 0, 0, 0x77}
	rec := newRecord()
	rec.IPv6.Router.Address = standIn
	rec.Neighbours = []cache.Neighbour{{Address: standIn, MAC: gatewayMAC, Station: global}}
	says := func(mac cache.MAC) []byte {
		return frame.AppendICMPv6(nil, guestMAC, mac, rec.IPv6.Address, global, frame.Advertisement(frame.Override|frame.Solicited, global, mac))
	}
	asks := solicitation(guestLL, frame.SolicitedNode(standIn), standIn, append([]byte{1, 1}, guestMAC[:]...)...)
	r := newResponder(t, rec, resolvConf)
	var seen []string
	strangers := 0
	r.Notify = func(e Event) {
		switch e.Kind {
		case otherMACSeen:
			strangers++
		case gatewayMoved:
			seen = append(seen, fmt.Sprint(e.Address, " ", e.MAC))
		}
	}
	serve(t, r, func(t *testing.T, p *fakePort) {
		questions := func() (n int) {
			out, _ := p.sent()
			for _, f := range out {
				if f[54] == frame.NeighbourSolicitation {
					if cache.MAC(f[6:12]) != guestMAC || string(f[22:38]) != string(rec.IPv6.Address.AsSlice()) || string(f[62:78]) != string(global.AsSlice()) {
						t.Errorf("question %x", f)
					}
					n++
				}
			}
			return n
		}
		wants := func(when string, asked int, mac cache.MAC) {
			t.Helper()
			synctest.Wait()
			if n := questions(); n != asked {
				t.Errorf("%s: %d questions, want %d", when, n, asked)
			}
			if got, silent := ask(t, r, asks); silent || got.srcMAC != mac {
				t.Errorf("%s: the guest gets %v, want %v", when, got.srcMAC, mac)
			}
		}
		time.Sleep(time.Minute)
		wants("start", 1, gatewayMAC)
		for range 50 {
			p.in <- asks
		}
		wants("asked often", 2, gatewayMAC)
		time.Sleep(time.Minute)
		for range 50 { // another station answers for the gateway, which answers as well
			p.in <- says(moved)
			p.in <- says(gatewayMAC)
		}
		time.Sleep(10 * time.Second)
		wants("two answers", 3, gatewayMAC)
		// The kernel copies what says nothing that can be followed, too: no MAC, and the guest's.
		nothing := frame.Advertisement(frame.Solicited, global, moved)[:frame.NeighbourLen]
		p.in <- frame.AppendICMPv6(nil, guestMAC, moved, rec.IPv6.Address, global, nothing)
		p.in <- frame.AppendICMPv6(nil, guestMAC, moved, rec.IPv6.Address, global, frame.Advertisement(0, global, guestMAC))
		time.Sleep(10 * time.Second)
		wants("no MAC", 3, gatewayMAC)
		if strangers != 0 {
			t.Errorf("%d frames of the network are taken for the guest's", strangers)
		}
		p.in <- arpFrame(frame.TypeARP, frame.ARPRequest, moved, rec.IPv4.Address.Addr(), cache.MAC{}, addr("10.244.1.1"))
		time.Sleep(10 * time.Second)
		if wants("a guest with another MAC", 3, gatewayMAC); strangers != 1 {
			t.Errorf("the guest's other MAC is reported %d times, want once", strangers)
		}
		for range claimAsks { // so many frames that the answers of the gateway found no place
			for range 20 {
				p.in <- says(moved)
			}
			time.Sleep(claimPause * 9 / 10)
		}
		time.Sleep(10 * time.Second)
		wants("a flood", 6, gatewayMAC)
		p.in <- says(moved)
		time.Sleep(10 * time.Second)
		wants("one frame, and no answer", 9, gatewayMAC)
		p.in <- says(moved)
		time.Sleep(900 * time.Millisecond)
		wants("the first second", 12, gatewayMAC)
		p.in <- says(moved)
		time.Sleep(200 * time.Millisecond)
		wants("the known one is silent", 12, moved)
		_, ra := advertisement(t, r)
		if fmt.Sprint(seen) != fmt.Sprint([]string{"fd00:10:244::1 " + moved.String()}) || describe(ra.Options[:1]) != describe([]ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: moved[:]}}) {
			t.Errorf("events %v, advertised %s", seen, describe(ra.Options))
		}
		if err := r.Update(rec, cache.DNS{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wants("the same record", 12, moved)
		newer := rec
		newer.Neighbours = []cache.Neighbour{{Address: standIn, MAC: responderMAC, Station: global}}
		if err := r.Update(newer, cache.DNS{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wants("a newer record", 13, responderMAC)
		if err := r.Update(rec, cache.DNS{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wants("the first MAC again", 14, gatewayMAC)
		rec.Role = cache.RoleStandby
		if err := r.Update(rec, cache.DNS{}); err != nil {
			t.Fatal(err)
		}
		p.in <- asks
		p.in <- says(moved)
		time.Sleep(time.Minute)
		wants("on standby", 14, gatewayMAC)
	})
}
