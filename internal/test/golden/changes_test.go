package golden

import "testing"

func TestChanges(t *testing.T) {
	const was = "table inet t {\n\tchain a {\n\t\tiifname \"tap\" accept\n\t}\n\tchain b {\n\t\tdrop\n\t}\n}\n"
	c := Changes{Names: [][]string{{`"tap"`, `"vm1"`, "t {", "u {"}, {`"tap"`, `"vm1"`}}}
	if c.Add("the same", was, was) {
		t.Error("the same tables differ")
	}
	for _, change := range []struct{ heading, is string }{
		{"another name", "table inet t {\n\tchain a {\n\t\tiifname \"vm1\" accept\n\t}\n\tchain b {\n\t\tdrop\n\t}\n}\n"},
		{"a name, and more", "table inet t {\n\tchain a {\n\t\tiifname \"vm1\" accept\n\t}\n\tchain b {\n\t\taccept\n\t}\n}\n"},
		{"again", "table inet t {\n\tchain a {\n\t\tiifname \"vm1\" accept\n\t}\n\tchain b {\n\t\taccept\n\t}\n\tchain c {\n\t\tdrop\n\t}\n}\n"},
	} {
		if !c.Add(change.heading, was, change.is) {
			t.Error(change.heading)
		}
	}
	want := "\n== the same\n" +
		"\n== another name\n\"vm1\" for \"tap\"\n" +
		"\n== a name, and more\ninet a\n-1\tiifname \"tap\" accept\n+1\tiifname \"vm1\" accept\ninet b\n-1\tdrop\n+1\taccept\n" +
		"\n== again\ninet c\n+1\tdrop\ninet a, inet b as: a name, and more\n"
	if c.String() != want {
		t.Errorf("%s\nwant\n%s", c.String(), want)
	}
}
