package wiring

import (
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
)

// wire asks the binding for the wanted state. It refuses one that needs a sysctl that the namespace lacks and that
// cannot be written, as in a container: engines mount /proc/sys read-only, and set sysctls at the container's start.
func (p *Plan) wire() error {
	if err := p.checkShown(); err != nil {
		return err
	}
	if err := p.binding.wire(p); err != nil {
		return err
	}
	if err := p.checkSysctls(); err != nil {
		return err
	}
	if missing := p.unwritable(); len(missing) > 0 {
		return p.refuse("it needs sysctls that cannot be written here: start the container with " + strings.Join(missing, " "))
	}
	return nil
}

// unwritable are the flags by which container engines set those of the wanted sysctls that differ in the namespace and
// cannot be written: "--sysctl net.ipv6.conf.all.forwarding=1", sorted.
func (p *Plan) unwritable() []string {
	var flags []string
	for path, value := range p.wanted.Sysctls {
		if p.found.Sysctls[path] == value || !slices.Contains(p.found.ReadOnly, path) {
			continue
		}
		flags = append(flags, "--sysctl "+infra.ShellWord(strings.ReplaceAll(path, "/", ".")+"="+value))
	}
	slices.Sort(flags)
	return flags
}
