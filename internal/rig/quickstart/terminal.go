package main

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/infra"
)

func title(b infra.Binding) {
	what := map[string]string{"bridge": "the guest is the pod", "redirect": "the guest is the pod, and the NIC stays as it is", "masquerade": "the guest is behind the pod"}[string(b.Kind())]
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
