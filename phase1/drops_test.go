package phase1_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// dropped is what the tables in the namespace have dropped, by reason, as nft(8) says.
func dropped(t *testing.T, ns *nstest.Namespace) map[string]int {
	t.Helper()
	counts := map[string]int{}
	reason, drops := "", false
	for line := range strings.Lines(ns.Exec("nft", "list", "ruleset")) {
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && words[0] == "chain":
			reason, drops = strings.CutPrefix(words[1], "drop-")
		case drops && len(words) > 5 && words[0] == "counter" && words[5] == "drop":
			n, err := strconv.Atoi(words[2])
			if err != nil {
				t.Fatalf("nft: %q", line)
			}
			counts[reason] += n
		}
	}
	return counts
}

// more is what has been dropped since, as text: "ip-spoof 2, mac-spoof 1". The namespace's own packets, which redirect
// drops at any time, are left out.
func more(before, now map[string]int) string {
	var words []string
	for _, reason := range slices.Sorted(maps.Keys(now)) {
		if n := now[reason] - before[reason]; n != 0 && reason != "namespace-output" {
			words = append(words, fmt.Sprintf("%s %d", reason, n))
		}
	}
	return strings.Join(words, ", ")
}
