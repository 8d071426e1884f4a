package main

import (
	"context"
	"encoding/json"
	"log"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/pins"
	"github.com/guestwire/guestwire/phase2/names"
)

const config = `{"binding": {"masquerade": {}}, "owner": {"uid": 107}, "state": "/run/guestwire/vm1", "dns": {"servers": ["10.0.2.1"]},
	"egress": ["divert gateway 53/udp :15353", "divert gateway 53 :15353", "refuse all"]}`

const list = `["registry.example 443", "*.github.com 443", "db.internal 5432 private", "host.internal = 10.0.2.1"]`

func main() {
	if os.Args[1] == "serve" { // without privileges
		proxy := names.Proxy{Pins: os.NewFile(3, "pins"), Log: slog.Default()}
		proxy.Addresses = []netip.AddrPort{netip.MustParseAddrPort("10.0.2.1:15353")}
		proxy.Guest = []netip.Prefix{netip.MustParsePrefix("10.0.2.2/32")}
		check(proxy.Serve(context.Background()))
		return
	}
	self, err := os.Executable()
	check(err)
	ns, err := os.Open(os.Args[1])
	check(err)
	var spec infra.Spec
	check(json.Unmarshal([]byte(config), &spec))
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	_, err = nic.Setup(context.Background(), spec)
	check(err)
	keeper := pins.Keeper{Pin: nic.Pin, NetNS: ns, Owner: infra.Owner{UID: 108}, Log: slog.Default()}
	check(json.Unmarshal([]byte(list), &keeper.Names))
	keeper.Command = func() *exec.Cmd {
		cmd := exec.Command(self, "serve")
		cmd.Stderr = os.Stderr
		return cmd
	}
	check(keeper.Run(context.Background()))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
