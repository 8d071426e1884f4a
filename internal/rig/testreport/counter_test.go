package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   string
		last string
		want []string // lines that have to be there, trimmed
		ok   bool
	}{
		{
			name: "two runs, subtests, a skip",
			in: `# run: here
{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestA/x"}
{"Action":"run","Package":"m/a","Test":"TestA/y"}
{"Action":"pass","Package":"m/a","Test":"TestA/x"}
{"Action":"output","Package":"m/a","Test":"TestA/y","Output":"=== RUN   TestA/y\n"}
{"Action":"output","Package":"m/a","Test":"TestA/y","Output":"    a_test.go:12: no dummy: not in this kernel\n"}
{"Action":"output","Package":"m/a","Test":"TestA/y","Output":"    --- SKIP: TestA/y (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestA/y"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Elapsed":1.25}
{"Action":"skip","Package":"m/none"}
# run: stock kernel
{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Elapsed":1}
`,
			want: []string{"ok    m/a  1.2 s: 1 passed, 1 skipped", "no dummy: not in this kernel", "m/a.TestA/y"},
			last: "2 passed, 0 failed, 1 skipped",
			ok:   true,
		},
		{
			name: "a failed subtest is one failure",
			in: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestA/x"}
{"Action":"output","Package":"m/a","Test":"TestA/x","Output":"    a_test.go:3: got 1, want 2\n"}
{"Action":"fail","Package":"m/a","Test":"TestA/x"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"fail","Package":"m/a"}
# broken: go test
`,
			want: []string{"a_test.go:3: got 1, want 2", "m/a.TestA/x"},
			last: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a test fails beside its subtests",
			in: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestA/x"}
{"Action":"pass","Package":"m/a","Test":"TestA/x"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"fail","Package":"m/a"}
`,
			last: "1 passed, 1 failed, 0 skipped",
		},
		{
			name: "a subtest's name has slashes",
			in: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestA/10.0.0.0/8"}
{"Action":"fail","Package":"m/a","Test":"TestA/10.0.0.0/8"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"fail","Package":"m/a"}
`,
			want: []string{"m/a.TestA/10.0.0.0/8"},
			last: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a build fails",
			in: `{"ImportPath":"m/a","Action":"build-output","Output":"a.go:1: syntax error\n"}
{"ImportPath":"m/a","Action":"build-fail"}
{"Action":"fail","Package":"m/a","FailedBuild":"m/a"}
`,
			want: []string{"a.go:1: syntax error", "m/a"},
			last: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "the stream breaks off in a test",
			in: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestB"}
`,
			want: []string{"m/a.TestB (did not end)"},
			last: "1 passed, 1 failed, 0 skipped",
		},
		{
			name: "the stream breaks off between tests",
			in: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
`,
			want: []string{"m/a (ended without a result)"},
			last: "1 passed, 1 failed, 0 skipped",
		},
		{
			name: "two commands break, one is explained by a package without a result",
			in: `{"Action":"start","Package":"m/a"}
# broken: go test m/a
# broken: go test m/b
`,
			want: []string{"m/a (ended without a result)", "go test m/b"},
			last: "0 passed, 2 failed, 0 skipped",
		},
		{
			name: "something else broke",
			in: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a"}
# broken: /etc/resolv.conf was changed
`,
			want: []string{"/etc/resolv.conf was changed"},
			last: "1 passed, 1 failed, 0 skipped",
		},
		{
			name: "a run without tests",
			in:   "# run: a\n# run: b\nsome words\n",
			want: []string{"some words", "no test ran"},
			last: "0 passed, 2 failed, 0 skipped",
		},
		{name: "nothing", last: "0 passed, 0 failed, 0 skipped"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var w strings.Builder
			ok, err := report(strings.NewReader(tc.in), &w)
			if err != nil {
				t.Fatal(err)
			}
			if ok != tc.ok {
				t.Errorf("ok is %v, want %v", ok, tc.ok)
			}
			lines := strings.Split(strings.TrimSuffix(w.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; last != tc.last {
				t.Errorf("last line %q, want %q", last, tc.last)
			}
			for i := range lines {
				lines[i] = strings.TrimSpace(lines[i])
			}
			text := "\n" + strings.Join(lines, "\n") + "\n"
			for _, want := range tc.want {
				if !strings.Contains(text, "\n"+want+"\n") {
					t.Errorf("no line %q in:%s", want, text)
				}
			}
		})
	}
}
