package wiring

// Described are the descriptions of which the plan's tables are made: a guestfilter.Guest, a router.Masquerade or a
// router.Routed.
func (p *Plan) Described() (all []any) {
	for _, d := range p.described {
		all = append(all, d)
	}
	return all
}
