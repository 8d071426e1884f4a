package wiring

import "github.com/guestwire/guestwire/internal/netstate"

// addFlows wants the sysctls of a log of connections, as far as the namespace has them. It refuses a binding where
// nobody tracks the guest's. Another binding of infra.Auto may do so.
func (p *Plan) addFlows() error {
	if !p.spec.Flows {
		return nil
	}
	if !p.traits().Routes {
		return p.refuse("flows are connections, and nobody tracks the guest's there")
	}
	for _, path := range netstate.OfFlows() {
		if _, has := p.found.Sysctls[path]; has {
			p.wanted.Sysctls[path] = "1"
		}
	}
	return nil
}

// FlowsLack are the sysctls of the log of connections that the namespace does not have. None: there is no log.
func (p *Plan) FlowsLack() (paths []string) {
	for _, path := range netstate.OfFlows() {
		if p.wanted.Sysctls[path] == "" && p.spec.Flows {
			paths = append(paths, path)
		}
	}
	return paths
}
