package guests_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestKernelIPReaders: systemd's generator and klibc's ipconfig, those of Debian 12 and of Debian 13, read each ip=
// that guestconfig writes.
func TestKernelIPReaders(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	twelve := machine.New(t, nstest.New(t, "guest"), "managers", "klibc")
	thirteen := machine.NewDebian13(t, nstest.New(t, "guest"))
	gateway, servers, ntp := netip.MustParseAddr("10.244.1.6"), []netip.Addr{netip.MustParseAddr("10.244.1.50"), netip.MustParseAddr("10.244.1.51"), netip.MustParseAddr("10.244.1.52")}, netip.MustParseAddr("10.244.1.53")
	for i := range 32 {
		address := []string{"10.244.1.7/24", "10.244.1.7/9"}[i/2%2]
		if i&1 != 0 && i%3 == 0 {
			address = "10.244.1.7/31" // beside a stand-in
		}
		r := cache.Record{
			Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1, MAC: cache.MAC{2, 0, 0, 0, 0, 7}, MTU: 1500,
			IPv4: &cache.IPv4{Address: netip.MustParsePrefix(address), Server: gateway},
		}
		device, want := "", []string{"address " + address}
		if i&1 != 0 {
			r.IPv4.Routes = []cache.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway}}
			want = append(want, "gateway 10.244.1.6")
		}
		given := servers[:i>>1&3]
		for _, s := range given[:min(2, len(given))] {
			want = append(want, "dns "+s.String())
		}
		if i&8 != 0 {
			device, r.Options.Hostname = "eth0", "vm1"
			want = append(want, "hostname vm1")
		}
		if i&16 != 0 {
			r.Options.NTP = []netip.Addr{ntp}
		}
		line, warnings, err := guestconfig.KernelIP(r, cache.DNS{Servers: given}, device)
		if err != nil {
			t.Fatal(err)
		}
		if i&16 != 0 && !strings.Contains(strings.Join(warnings, "\n"), "the time server 10.244.1.53 is left out") {
			t.Errorf("%s: no warning of the time server: %q", line, warnings)
		}
		for _, reader := range []struct {
			name    string
			machine *machine.Machine
			command string
		}{
			{"systemd 252", twelve, generator}, {"systemd 257", thirteen, generator},
			{"klibc 2.0.12", twelve, ipconfig}, {"klibc 2.0.14", thirteen, ipconfig},
		} {
			out, err := reader.machine.Run(fmt.Sprintf(reader.command, line))
			if have := strings.TrimSpace(out); err != nil || have != strings.Join(want, "\n") {
				t.Errorf("%s, %s: %v\n%s\nwant\n%s", reader.name, line, err, have, strings.Join(want, "\n"))
			}
		}
	}
}

const (
	// generator prints what systemd's generator has made of an ip=.
	generator = "rm -rf /run/systemd/network; /lib/systemd/systemd-network-generator -- '%s' && " +
		`sed -n -e 's/^Address=/address /p' -e 's/^Gateway=/gateway /p' -e 's/^DNS=/dns /p' -e 's/^Hostname=/hostname /p' /run/systemd/network/*.network | ` + sorted
	// ipconfig prints what klibc's ipconfig has made of an ip=, as initramfs-tools calls it.
	ipconfig = `line='%s'; rm -f /run/net-*; unshare --net --mount sh -c 'mount -t sysfs -o ro sysfs /sys; ip link add eth0 type veth peer name peer0; ip link set peer0 up; ` +
		`/usr/lib/klibc/bin/ipconfig -t 5 -d "$1" >/run/log 2>&1 || { cat /run/log; exit 1; }; ip -4 -o addr show dev eth0; ip -4 route show default' ipconfig "${line#ip=}" >/run/ip && . /run/net-eth0.conf && ` +
		`{ sed -n -e 's/.* inet \(\S*\) .*/address \1/p' -e 's/^default via \(\S*\) .*/gateway \1/p' /run/ip; ` +
		`for a in "$IPV4DNS0" "$IPV4DNS1"; do test "$a" = 0.0.0.0 || echo dns $a; done; test -z "$HOSTNAME" || echo hostname $HOSTNAME; } | ` + sorted
	// sorted puts the lines in the order of the test.
	sorted = `awk '{ all[$1] = all[$1] $0 "\n" } END { printf "%%s%%s%%s%%s", all["address"], all["gateway"], all["dns"], all["hostname"] }'`
)
