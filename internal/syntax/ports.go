package syntax

import "cmp"

// Ports has the fields of infra.Ports and of cache.Forward, so that each converts to the others.
type Ports struct {
	Protocol    string
	First, Last uint16
	Guest       uint16
}

// Full returns p with its defaults: Protocol is "tcp", Last and Guest are First.
func (p Ports) Full() Ports {
	return Ports{cmp.Or(p.Protocol, "tcp"), p.First, max(p.First, p.Last), cmp.Or(p.Guest, p.First)}
}
