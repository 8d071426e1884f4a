package main

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

// TestOptions: a command line with a word that means nothing is refused, and the refusal names the word or what is meant.
func TestOptions(t *testing.T) {
	for line, want := range map[string]string{
		"setup":                    `"setup" is no flag`,
		"-only setup many":         `"many" is no flag`,
		"-only setups":             "the parts are setup, ",
		"-setup 3":                 "-setup",
		"-only setup -h":           flag.ErrHelp.Error(),
		"-setups many":             `"many"`,
		"-setups=3 -only= ":        "",
		"-only timeline -setups 3": "-setups: the part timeline has no such flag",
		"-only many -setups 3":     "",
		"-only many -guests 3":     "",
		"-only node -guests 3":     "",
	} {
		_, err := parseOptions(strings.Fields(line), io.Discard)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("bench %s: %v, want %q", line, err, want)
		}
	}
}

// TestHelp: the help tells of each flag the part that it belongs to.
func TestHelp(t *testing.T) {
	var out strings.Builder
	o, err := parseOptions([]string{"-help"}, &out)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	_, flags, _ := strings.Cut(out.String(), "Each flag")
	for _, name := range o.partNames() {
		if !strings.Contains(flags, name+": ") && !strings.Contains(flags, name+", ") {
			t.Errorf("no flag of the part %s in\n%s", name, flags)
		}
	}
}
