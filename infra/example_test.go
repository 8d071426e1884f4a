package infra_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// Two ports are forwarded to the guest, one of them to another port. All other ports stay the namespace's.
func ExampleMasquerade() {
	spec := infra.Spec{
		Binding: infra.Masquerade{Ports: []infra.Ports{{First: 443}, {First: 8080, Guest: 80}}, MaxConnections: 10000},
		Owner:   infra.Owner{UID: 107},
	}
	if err := spec.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	text, err := json.Marshal(spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(text))
	// Output:
	// {"binding":{"masquerade":{"ports":["443/tcp","8080:80/tcp"],"maxConnections":10000}},"owner":{"uid":107}}
}

// The guest runs containers with addresses of their own, behind its MAC.
func ExampleGuard() {
	spec := infra.Spec{
		Owner:   infra.Owner{UID: 107},
		Binding: infra.Bridge{},
		Guard:   infra.Guard{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")}},
	}
	fmt.Println(spec.Validate())

	spec.Guard.Prefixes[0] = netip.MustParsePrefix("10.88.0.1/16")
	err := spec.Validate()
	var field *cache.FieldError
	if errors.As(err, &field) {
		fmt.Println(field.Field)
	}
	fmt.Println(err)
	// Output:
	// <nil>
	// guard.prefixes[0]
	// guard.prefixes[0]: 10.88.0.1/16 is no network, want one like 10.1.0.0/24 or fd00::/64
}

// What the guest opens to a cloud's metadata service arrives at a process of the namespace, and its TLS at a proxy. An
// operator's list names the ports of the namespace to which a user's list may divert.
func ExampleEgress() {
	spec := infra.Spec{
		Binding: infra.Masquerade{},
		Owner:   infra.Owner{UID: 107},
		Egress: []infra.Egress{
			{To: "169.254.169.254", Ports: infra.Ports{First: 80}, Divert: netip.MustParseAddrPort("127.0.0.1:8080")},
			{To: "all", Ports: infra.Ports{First: 443}, Divert: netip.AddrPortFrom(netip.Addr{}, 15443)}, // of the gateway
			{To: "all", Refuse: true},
		},
	}
	for _, e := range spec.Egress {
		fmt.Println(e)
	}
	fmt.Println(spec.Validate())

	spec.EgressWithin = []infra.Egress{
		{To: "127.0.0.1", Ports: infra.Ports{First: 8000, Last: 8100}},
		{To: "link-local", Refuse: true},
		{To: "all"},
	}
	var field *cache.FieldError
	if errors.As(spec.Validate(), &field) {
		fmt.Println(field.Field, "leads to a port that the operator's list does not name")
	}
	// Output:
	// divert 169.254.169.254 80/tcp 127.0.0.1:8080
	// divert all 443/tcp :15443
	// refuse all
	// <nil>
	// egress[1] leads to a port that the operator's list does not name
}

// A Spec comes from a file, and an error names the place of a mistake.
func ExampleSpec_UnmarshalJSON() {
	var spec infra.Spec
	err := json.Unmarshal([]byte(`{"binding": {"masquerade": {"ports": ["80", "70000"]}}}`), &spec)
	fmt.Println(err)
	// Output:
	// binding.masquerade.ports[1]: ports "70000": "70000" is no port, want 1 to 65535, as in 80, 8000-8100/udp, 8080:80
}

// Setup and Plan refuse a binding that cannot work on the NIC, and name one that can.
func ExampleRefusedError() {
	err := fmt.Errorf("vm1: %w", &infra.RefusedError{
		NIC: "eth0", Binding: "bridge", Reason: "an ipvlan can be no bridge's port", Instead: "redirect",
	})
	var refused *infra.RefusedError
	if errors.As(err, &refused) && refused.Instead != "" {
		binding, err := infra.NewBinding(refused.Instead)
		fmt.Printf("%v: %T, %v\n", refused, binding, err)
	}
	// Output:
	// bridge binding: an ipvlan can be no bridge's port; redirect would work: infra.Redirect, <nil>
}
