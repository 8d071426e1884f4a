package infra

// Auto is [Bridge] where that can work, else [Redirect], else [Masquerade] with its defaults. The first
// Setup chooses; the record tells what Auto became.
type Auto struct{}

// Kind is "auto".
func (Auto) Kind() string { return "auto" }

func (b Auto) visit(v Visitor)              { v.Auto(b) }
func (Auto) validate() error                { return nil }
func (Auto) validateGuard(g Guard) error    { return g.opensNothing() }
func (b Auto) sameGuest(other Binding) bool { return b == other }
func (Auto) wiredAs() string                { return "" }
