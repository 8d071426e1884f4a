package main

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/infra"
)

func title(b infra.Binding) {
	what := map[string]string{"bridge": "the guest is the pod", "redirect": "the guest is the pod, and the NIC stays as it is", "masquerade": "the guest is behind the pod"}[b.Kind()]
	fmt.Printf("\n== %s binding: %s ==\n", b.Kind(), what)
}

// step prints a step that has succeeded.
func step(format string, args ...any) {
	fmt.Println("✓", fmt.Sprintf(format, args...))
}

// withoutRules is a plan that counts the lines of each nftables transaction, which would be most of the output.
func withoutRules(plan string) string {
	var b strings.Builder
	table, hidden := "", -1 // -1: outside of a transaction
	for line := range strings.Lines(plan) {
		switch {
		case hidden < 0 && strings.HasPrefix(line, "nft -f - <<EOF"):
			table, hidden = "", 0
		case hidden < 0:
			b.WriteString(line)
		case line == "EOF\n":
			fmt.Fprintf(&b, "nft -f -    # %s: %d lines, which agent plan prints\n", table, hidden)
			hidden = -1
		default:
			if table == "" {
				table = strings.TrimRight(line, " {\n")
			}
			hidden++
		}
	}
	return b.String()
}

// quote prints text indented, like a program's output.
func quote(text string) {
	for line := range strings.Lines(text) {
		fmt.Println("    " + strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "  "))
	}
}
