package phase1_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestSight: Check finds a rule of another program, and does not read the rules where the file beside the journal has
// the generation with that rule. A file that is damaged, or of another journal or program, is none.
func TestSight(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	check(t, c)
	path, _ := journal(t, n)
	path = strings.TrimSuffix(path, ".journal") + ".sight"
	left := string(readFile(t, path))
	writeFile(t, path, strings.Replace(left, `"of":"`, `"of":"0`, 1)) // as another program left it
	check(t, c)
	if now := string(readFile(t, path)); now != left {
		t.Errorf("after a Check by another program there is %s, want %s", now, left)
	}
	n.Pod.Exec("nft", "add", "rule", "inet", "guestwire-eth0", "from-namespace", "accept")
	text := string(readFile(t, path))
	var seen struct {
		Of         string         `json:"of"`
		Generation int            `json:"generation"`
		Links      map[string]int `json:"links"`
		Sizes      map[string]int `json:"sizes"`
	}
	if err := json.Unmarshal([]byte(text), &seen); err != nil {
		t.Fatal(err)
	}
	write := func(edit func()) string {
		edit()
		edited, err := json.Marshal(seen)
		if err != nil {
			t.Fatal(err)
		}
		return string(edited)
	}
	trusted := write(func() { seen.Generation++ })
	for _, e := range []struct {
		name, text string
		sees       bool
	}{
		{"as Setup left it", text, true},
		{"the present generation", trusted, false},
		{"cut short", trusted[:len(trusted)-1], true},
		{"empty", "", true},
		{"another link", write(func() { seen.Links["eth0-tap"]++ }), true},
		{"another size", write(func() { seen.Links["eth0-tap"]--; seen.Sizes["inet"]++ }), true},
		{"another journal", write(func() { seen.Sizes["inet"]--; seen.Of = seen.Of[1:] }), true},
	} {
		writeFile(t, path, e.text)
		var drift *phase1.DriftError
		if err := c.Check(t.Context()); errors.As(err, &drift) != e.sees || !e.sees && err != nil {
			t.Errorf("%s: %v", e.name, err)
		}
	}
	setup(t, c) // of another journal: it reads the rules
	check(t, c)
	if list := n.Pod.Exec("nft", "list", "table", "inet", "guestwire-eth0"); strings.Contains(list, "accept\n\t}") {
		t.Errorf("the rule is still there:\n%s", list)
	}
}
