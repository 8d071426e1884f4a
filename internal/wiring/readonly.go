package wiring

import (
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// wire asks the binding for the wanted state. It refuses one that needs a sysctl that the namespace lacks and that
// cannot be written, as in a container: engines mount /proc/sys read-only, and set sysctls at the container's start.
func (p *Plan) wire(nic netstate.Link) error {
	if err := checkShown(p.spec, p.found, nic); err != nil {
		return err
	}
	if err := p.binding.wire(p, nic); err != nil {
		return err
	}
	if err := p.checkSysctls(nic); err != nil {
		return err
	}
	if missing := unwritable(p.found, p.wanted.Sysctls); len(missing) > 0 {
		return &infra.RefusedError{
			NIC: nic.Name, Binding: p.spec.Binding.Kind(),
			Reason: "it needs sysctls that cannot be written here: start the container with " + strings.Join(missing, " "),
		}
	}
	return nil
}

// unwritable are the flags by which container engines set those of the wanted sysctls that differ in the namespace and
// cannot be written: "--sysctl net.ipv6.conf.all.forwarding=1", sorted.
func unwritable(found netstate.Snapshot, wanted map[string]string) []string {
	var flags []string
	for path, value := range wanted {
		if found.Sysctls[path] == value || !slices.Contains(found.ReadOnly, path) {
			continue
		}
		flags = append(flags, "--sysctl "+infra.ShellWord(strings.ReplaceAll(path, "/", ".")+"="+value))
	}
	slices.Sort(flags)
	return flags
}
