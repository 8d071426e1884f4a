package wiring

import (
	"errors"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// wire asks the binding for the wanted state. It refuses one that needs a sysctl that the namespace lacks and that
// cannot be written, as in a container: engines mount /proc/sys read-only, and set sysctls at the container's start.
func (p *Plan) wire(nic netstate.Link) error {
	err := p.binding.wire(p, nic)
	if err == nil {
		if missing := p.unwritable(p.wanted.Sysctls); len(missing) > 0 {
			return &infra.RefusedError{
				NIC: nic.Name, Binding: p.spec.Binding.Kind(), Instead: p.withoutSysctls(nic),
				Reason: "it needs sysctls that cannot be written here: start the container with " + strings.Join(missing, " "),
			}
		}
		return nil
	}
	var refused *infra.RefusedError
	if errors.As(err, &refused) && slices.Contains([]cache.Kind{cache.BindingBridge, cache.BindingMasquerade, cache.BindingRouted}, refused.Instead) {
		calls := map[string]string{}
		for _, path := range netstate.BridgeCalls() {
			calls[path] = "0" // as bridge wants; masquerade and routed want others, which are read-only where these are
		}
		if len(p.unwritable(calls)) > 0 || p.binding.traits().routes && len(p.found.ReadOnly) > 0 {
			refused.Instead = p.withoutSysctls(nic)
		}
	}
	return err
}

// unwritable are the flags by which container engines set those of the wanted sysctls that differ in the namespace and
// cannot be written: "--sysctl net.ipv6.conf.all.forwarding=1", sorted.
func (p *Plan) unwritable(wanted map[string]string) []string {
	var flags []string
	for path, value := range wanted {
		if p.found.Sysctls[path] == value || !slices.Contains(p.found.ReadOnly, path) {
			continue
		}
		flag := strings.ReplaceAll(path, "/", ".") + "=" + value
		if strings.Contains(value, " ") {
			flag = `"` + flag + `"`
		}
		flags = append(flags, "--sysctl "+flag)
	}
	slices.Sort(flags)
	return flags
}

// withoutSysctls is the binding that works on the NIC and needs no sysctl; empty: there is none.
func (p *Plan) withoutSysctls(nic netstate.Link) cache.Kind {
	if t := p.binding.traits(); (t.bridged || t.routes) && p.checkRedirect(nic) == nil {
		return cache.BindingRedirect
	}
	return ""
}
