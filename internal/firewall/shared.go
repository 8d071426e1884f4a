package firewall

import "fmt"

// Families of tables that are one chain of the kernel's table mangle. The chain has the table's name. Iptables-nft and
// the wirings of other NICs have chains in mangle, too. A rule with [CompleteChecksum] works nowhere else: the kernel
// wants a table of that name, and an inet table does not have the target.
const (
	Mangle4 Family = "ip mangle"
	Mangle6 Family = "ip6 mangle"
)

// Shared reports whether a table of the family is one chain of a table that others share.
func (f Family) Shared() bool { return f == Mangle4 || f == Mangle6 }

// TableOf returns the name that the kernel's table has, for a table with the name.
func (f Family) TableOf(name string) string {
	if f.Shared() {
		return "mangle"
	}
	return name
}

// where returns the kernel's table in nft's words, family and name.
func (f Family) where(name string) string {
	if f.Shared() {
		return string(f) // both
	}
	return fmt.Sprintf("%s %s", f, name)
}

// Deletion returns the commands of nft that delete the table, a line each.
func (f Family) Deletion(name string) string {
	if f.Shared() {
		return fmt.Sprintf("nft delete chain %s %s\n# if nothing else is in it: nft delete table %s", f, name, f)
	}
	return fmt.Sprintf("nft delete table %s %s", f, name)
}

// Describe names the table for people.
func (f Family) Describe(name string) string {
	switch {
	case f.IPTables() != 0:
		return fmt.Sprintf("%s of %s", name, f)
	case f.Shared():
		return fmt.Sprintf("chain %s of the nftables table %s", name, f)
	}
	return fmt.Sprintf("nftables table %s %s", f, name)
}
