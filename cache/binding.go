package cache

import (
	"fmt"
	"slices"
)

// Kind is a kind of binding. Records and Specs name it.
type Kind string

const (
	BindingBridge     Kind = "bridge"
	BindingRedirect   Kind = "redirect"
	BindingMasquerade Kind = "masquerade"
	BindingRouted     Kind = "routed"
	BindingMacvtap    Kind = "macvtap"
	BindingSRIOV      Kind = "sriov"
	BindingPasst      Kind = "passt"
	BindingSlirp      Kind = "slirp"
)

// bindings are all that a record can name.
var bindings = []Kind{BindingBridge, BindingRedirect, BindingMasquerade, BindingRouted, BindingMacvtap, BindingSRIOV, BindingPasst, BindingSlirp}

// Bindings whose guest is not at a tap that Setup makes, and those without a tap.
var (
	attachedDirectly = []Kind{BindingMacvtap, BindingSRIOV, BindingPasst, BindingSlirp}
	withoutTap       = []Kind{BindingSRIOV, BindingPasst, BindingSlirp}
)

func (k *Kind) UnmarshalText(text []byte) error {
	if !slices.Contains(bindings, Kind(text)) {
		return fmt.Errorf("%q, want one of %q", text, bindings)
	}
	*k = Kind(text)
	return nil
}

// Firewall is a program whose rules translate addresses.
type Firewall string

const (
	FirewallNFTables       Firewall = "nftables"
	FirewallIPTablesNFT    Firewall = "iptables-nft"
	FirewallIPTablesLegacy Firewall = "iptables-legacy"
)

// firewalls are all that a record can name.
var firewalls = []Firewall{FirewallNFTables, FirewallIPTablesNFT, FirewallIPTablesLegacy}

func (f *Firewall) UnmarshalText(text []byte) error {
	if !slices.Contains(firewalls, Firewall(text)) {
		return fmt.Errorf("%q, want one of %q", text, firewalls)
	}
	*f = Firewall(text)
	return nil
}
