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

// Role is what a namespace is for a guest that moves. Unless it is RoleActive, the guest's tap is down until Activate
// of phase1.NIC.
type Role string

const (
	// RoleActive: the guest is active in the namespace.
	RoleActive Role = ""
	// RoleStandby: the guest was never active in the namespace, and may be active in another one.
	RoleStandby Role = "standby"
	// RoleInactive: Deactivate wrote the record, after the guest was active in the namespace. The
	// guest is active nowhere until an Activate takes this record.
	RoleInactive Role = "inactive"
)

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
