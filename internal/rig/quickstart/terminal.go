package main

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

func title(b infra.Binding) {
	what := map[cache.Kind]string{
		cache.BindingBridge:     "the guest is the pod",
		cache.BindingRedirect:   "the guest is the pod, and the NIC stays as it is",
		cache.BindingRouted:     "the guest has the pod's addresses, and the pod routes",
		cache.BindingMasquerade: "the guest is behind the pod",
	}[b.Kind()]
	fmt.Printf("\n== %s binding: %s ==\n", b.Kind(), what)
}

// step prints a step that has succeeded.
func step(format string, args ...any) {
	fmt.Println("✓", fmt.Sprintf(format, args...))
}

// quote prints text indented, like a program's output.
func quote(text string) {
	for line := range strings.Lines(text) {
		fmt.Println("    " + strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "  "))
	}
}
