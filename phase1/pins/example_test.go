package pins_test

import (
	"context"
	"encoding/json"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/pins"
)

// The Spec's DNS.Servers has the guest's gateway, and its list of egress is "divert gateway 53/udp :15353", "divert
// gateway 53 :15353", "refuse all".
func ExampleKeeper() {
	ctx := context.Background()
	ns, err := os.Open("/run/netns/pod")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	keeper := pins.Keeper{
		Pin: nic.Pin, NetNS: ns, Owner: infra.Owner{UID: 107}, Log: slog.Default(),
		Command: func() *exec.Cmd { return exec.Command("/proc/self/exe", "names") }, // calls Proxy.Serve
	}
	if err := json.Unmarshal([]byte(`["registry.example 443", "*.github.com 443 80", "host.internal = 10.0.2.1"]`), &keeper.Names); err != nil {
		log.Fatal(err)
	}
	if err := keeper.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// The proxies of all NICs of the node whose Spec has Names, until a signal ends the program.
func ExampleNode() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	node := pins.Node{
		Command: func(w phase1.Wiring) (*exec.Cmd, error) {
			return exec.Command("guestwire-launcher", "names", "-state", w.State, "-nic", w.NIC), nil
		},
		Owner: infra.Owner{UID: 65534}, // nobody
		Log:   slog.Default(),
	}
	if err := node.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
