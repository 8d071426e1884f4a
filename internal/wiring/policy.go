package wiring

import (
	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// checkPolicy refuses a policy that no rule can keep. Another binding of infra.Auto may be able to.
func checkPolicy(spec infra.Spec, found netstate.Snapshot, nic netstate.Link) error {
	by := policyOf(spec, Networks{})
	if !by.IsSet() {
		return nil
	}
	if found.NoNFTables {
		return &cache.FieldError{Field: by.Field(), Reason: "this kernel has no nf_tables, which would look up where the guest's connections go: load them (modprobe nf_tables), then take the NIC down if it is wired (Teardown), and call Setup; or leave this field out"}
	}
	if !traitsOf(spec.Binding).Routes {
		return &infra.RefusedError{NIC: nic.Name, Binding: spec.Binding.Kind(), Reason: "egress is about connections, and nobody tracks the guest's there"}
	}
	return nil
}
