package nstest

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Settled is the dump once it does not change by itself any more.
func (n *Namespace) Settled() string {
	n.t.Helper()
	dump := n.Dump()
	Eventually(n.t, func() error {
		last := dump
		time.Sleep(100 * time.Millisecond)
		if links := n.IP("-br link"); unnoticed.MatchString(links) {
			return errors.New(links)
		}
		dump = n.Dump()
		return Difference(Stable(last), Stable(dump))
	})
	return dump
}

// unnoticed are carriers that the kernel is to act upon, up to a second after they came: then come
// link-local addresses and routes.
var unnoticed = regexp.MustCompile(`(?m)^\S+ +(DOWN|LOWERLAYERDOWN) .*\bLOWER_UP\b`)

// Difference says where two dumps differ first, or nothing.
func Difference(want, got string) error {
	if want == got {
		return nil
	}
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Errorf("line %d is\n%s\nand was\n%s", i+1, g[i], w[i])
		}
	}
	return fmt.Errorf("%d lines, and there were %d", len(g), len(w))
}

// Stable takes out what time changes: the seconds that are left of a lifetime.
func Stable(dump string) string {
	var lines []string
	for line := range strings.Lines(dump) {
		for _, word := range strings.Fields(line) {
			if strings.HasSuffix(word, "sec") && word != "0sec" {
				line = strings.Replace(line, word, "SECONDS", 1)
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}
