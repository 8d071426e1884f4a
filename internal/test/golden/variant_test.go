package golden

import "testing"

func TestVariant(t *testing.T) {
	const base = "a\n\tb {\n\t\tc\n\t\td\n\t}\ne\nf\ng\nh\n"
	for name, c := range map[string]struct{ text, want string }{
		"the same":            {base, ""},
		"an other line":       {"a\n\tb {\n\t\tc\n\t\tD\n\t}\ne\nf\ng\nh\n", "-\t\td\n+\t\tD\n"},
		"an other first line": {"A\n\tb {\n\t\tc\n\t\td\n\t}\ne\nf\ng\nh\n", "-a\n+A\n"},
		"swapped":             {"a\n\tb {\n\t\td\n\t\tc\n\t}\ne\nf\ng\nh\n", "-\t\tc\n@@ b { | d\n+\t\tc\n"},
		"many go":             {"a\n\tb {\n\t\tc\n\t\td\n\t}\nx\nh\n", "-e\n-f\n- and 1 more\n+x\n"},
		"the end":             {base + "i\n", "@@ h\n+i\n"},
		"one of two goes":     {"a\n\tb {\n\t\tc\n\t\td\n\t}\ne\nf\ng\nh\nh\n", "@@ h\n+h\n"},
		"all go":              {"", "-a\n-\tb {\n- and 7 more\n"},
	} {
		if got := Variant(base, c.text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
