package golden

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Text is a text that prints firewall tables as nft -f and iptables-restore read them.
type Text struct {
	Name string // of its file in testdata
	Text string
}

// Chains are the chains, sets, maps and flow tables of many texts. Each distinct one has a number under its name, and
// each rule of a chain is printed once, with the numbers of the chains that have it.
//
// A number stays as long as something has it. The content of a number may change: when all texts that named #3 have
// another chain in its place, that is #3. So a changed rule changes one line of one file, and no number. A digest in
// place of the number would change in each text that names the chain. Numbers in the order of the texts would move when
// a text is added.
type Chains struct {
	dir   string
	texts map[string]document
	items map[string]*item // by file and name, as in "netdev chain guest"
	order []string         // the keys of items
}

// item is what has one name in one file.
type item struct {
	numbers map[string]int // by content
	lines   []line
}

// line is one line of an item's contents, and the numbers of those that have it.
type line struct {
	text string
	in   []int
}

// NewChains numbers what the texts have. The numbers are those of testdata/DIR and of the texts' files there.
func NewChains(t testing.TB, dir string, texts []Text) *Chains {
	t.Helper()
	c := &Chains{dir: dir, texts: map[string]document{}, items: map[string]*item{}}
	known, err := readChains(filepath.Join("testdata", dir))
	if err != nil {
		t.Fatal(err)
	}
	uses := map[string]map[string][]int{} // by key and content, the numbers that the texts' files have in its place
	var contents []reference              // in order
	for _, text := range texts {
		d := parse(text.Text)
		c.texts[text.Name] = d
		file, _ := os.ReadFile(filepath.Join("testdata", text.Name)) // none: the text is new
		named := namedIn(string(file))
		last := ""
		for _, ref := range d.references() {
			if c.items[ref.key] == nil {
				c.items[ref.key] = &item{numbers: map[string]int{}}
				c.order = slices.Insert(c.order, slices.Index(c.order, last)+1, ref.key)
				uses[ref.key] = map[string][]int{}
			}
			if _, there := uses[ref.key][ref.content]; !there {
				contents = append(contents, ref)
			}
			uses[ref.key][ref.content] = append(uses[ref.key][ref.content], named[ref.key])
			last = ref.key
		}
	}
	// Those that most texts have are numbered first.
	slices.SortStableFunc(contents, func(a, b reference) int {
		return cmp.Compare(len(uses[b.key][b.content]), len(uses[a.key][a.content]))
	})
	for _, choose := range []func(reference, *item) int{
		func(ref reference, _ *item) int { return known[ref.key][ref.content] },
		func(ref reference, i *item) int { return i.mostNamed(uses[ref.key][ref.content]) },
		func(_ reference, i *item) int { return i.free() },
	} {
		for _, ref := range contents {
			i := c.items[ref.key]
			if i.numbers[ref.content] == 0 {
				if n := choose(ref, i); n != 0 {
					i.numbers[ref.content] = n
				}
			}
		}
	}
	for _, i := range c.items {
		i.merge()
	}
	c.checkExpands(t, texts)
	return c
}

// checkExpands wants each short text to be the whole one when it is expanded.
func (c *Chains) checkExpands(t testing.TB, texts []Text) {
	t.Helper()
	all := map[string]map[string]int{}
	for file, text := range c.files() {
		maps.Copy(all, parseChains(file, text))
	}
	for _, text := range texts {
		if got := expand(c.Short(text.Name), all); got != text.Text {
			t.Fatalf("%s is another text when it is expanded:\n%s", text.Name, Diff(text.Text, got))
		}
	}
}

// Short is the text of that name with the names and numbers of chains in place of the chains.
func (c *Chains) Short(name string) string {
	var b strings.Builder
	for _, p := range c.texts[name] {
		if p.refs == nil {
			b.WriteString(p.line + "\n")
			continue
		}
		width := 0
		for i, ref := range p.refs {
			_, word, _ := strings.Cut(ref.key, " ")
			word = strings.TrimPrefix(word, "chain ")
			if n := c.items[ref.key].numbers[ref.content]; n != 1 {
				word += fmt.Sprintf(" #%d", n)
			}
			switch {
			case i == 0:
				b.WriteString("\t")
			case width+len(word) > 112 || begins(p.refs[i-1].key, ref.key):
				b.WriteString(",\n\t")
				width = 0
			default:
				b.WriteString(", ")
			}
			b.WriteString(word)
			width += len(word) + len(", ")
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// begins reports whether a list has a new line there: before the chains, and before those that drop.
func begins(before, key string) bool {
	kind := func(key string) string {
		switch _, name, _ := strings.Cut(key, " "); {
		case strings.HasPrefix(name, "chain drop-"):
			return "drop"
		case strings.HasPrefix(name, "chain "):
			return "chain"
		}
		return "set"
	}
	return kind(before) != kind(key)
}

// Compare wants the files of testdata/DIR to have the chains, and nothing else.
func (c *Chains) Compare(t testing.TB) {
	t.Helper()
	files := c.files()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		Compare(t, filepath.Join(c.dir, name+".txt"), files[name])
	}
	there, err := filepath.Glob(filepath.Join("testdata", c.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		if _, wanted := files[strings.TrimSuffix(filepath.Base(file), ".txt")]; !wanted {
			t.Errorf("%s has chains that no text has: delete it", file)
		}
	}
}

// files returns the texts of the files of chains, by their names. parseChains reads them.
func (c *Chains) files() map[string]string {
	files := map[string]string{}
	for _, key := range c.order {
		file, name, _ := strings.Cut(key, " ")
		i := c.items[key]
		all := slices.Sorted(maps.Values(i.numbers))
		text := cmp.Or(files[file], chainsHead) + "\n" + name + " " + numbersText(all) + "\n"
		for _, l := range i.lines {
			text += gutter(l.in, all) + "\t" + l.text + "\n"
		}
		files[file] = text
	}
	return files
}

// gutter names the shorter list, of those that have a line or of those that have it not. So a new chain that has what
// most have changes few lines.
func gutter(in, all []int) string {
	out := slices.DeleteFunc(slices.Clone(all), func(n int) bool { return slices.Contains(in, n) })
	switch {
	case len(out) == 0:
		return ""
	case len(out) < len(in):
		return "not " + numbersText(out)
	}
	return numbersText(in)
}

// numbersText is "#1-3,7".
func numbersText(sorted []int) string {
	var words []string
	for i := 0; i < len(sorted); {
		last := i
		for last+1 < len(sorted) && sorted[last+1] == sorted[last]+1 {
			last++
		}
		word := strconv.Itoa(sorted[i])
		if last > i {
			word += "-" + strconv.Itoa(sorted[last])
		}
		words = append(words, word)
		i = last + 1
	}
	return "#" + strings.Join(words, ",")
}

// free is the least number that nothing has.
func (i *item) free() int {
	taken := slices.Collect(maps.Values(i.numbers))
	for n := 1; ; n++ {
		if !slices.Contains(taken, n) {
			return n
		}
	}
}

// mostNamed is the number, free yet, that is most often among the named ones; 0: none.
func (i *item) mostNamed(named []int) int {
	best, times := 0, map[int]int{}
	taken := slices.Collect(maps.Values(i.numbers))
	for _, n := range named {
		if n == 0 || slices.Contains(taken, n) {
			continue
		}
		if times[n]++; best == 0 || times[n] > times[best] {
			best = n
		}
	}
	return best
}

// merge makes one sequence of the lines of all contents, in the order of their numbers.
func (i *item) merge() {
	byNumber := map[int]string{}
	for content, n := range i.numbers {
		byNumber[n] = content
	}
	for _, n := range slices.Sorted(maps.Keys(byNumber)) {
		if content := byNumber[n]; content != "" {
			i.add(n, strings.Split(strings.TrimSuffix(content, "\n"), "\n"))
		}
	}
}

// add adds the lines of the content n. Equal lines become one. A line that differs from another in addresses alone
// comes after that.
func (i *item) add(n int, lines []string) {
	const same, similar = 1000, 1
	value := func(a, b string) int {
		switch {
		case a == b:
			return same
		case values.ReplaceAllString(a, "") == values.ReplaceAllString(b, ""):
			return similar
		}
		return 0
	}
	have := i.lines
	best := make([][]int, len(have)+1) // of what is left of both from there
	for x := range best {
		best[x] = make([]int, len(lines)+1)
	}
	for x := len(have) - 1; x >= 0; x-- {
		for y := len(lines) - 1; y >= 0; y-- {
			best[x][y] = max(best[x+1][y], best[x][y+1])
			if v := value(have[x].text, lines[y]); v > 0 {
				best[x][y] = max(best[x][y], best[x+1][y+1]+v)
			}
		}
	}
	var merged []line
	x, y := 0, 0
	for x < len(have) || y < len(lines) {
		v := 0
		if x < len(have) && y < len(lines) {
			v = value(have[x].text, lines[y])
		}
		switch {
		case x < len(have) && best[x][y] == best[x+1][y]: // so similar lines are in the order of their numbers
			merged = append(merged, have[x])
			x++
		case v == same && best[x][y] == best[x+1][y+1]+v:
			merged = append(merged, line{lines[y], append(slices.Clone(have[x].in), n)})
			x, y = x+1, y+1
		case v == similar && best[x][y] == best[x+1][y+1]+v:
			merged = append(merged, have[x], line{lines[y], []int{n}})
			x, y = x+1, y+1
		default:
			merged = append(merged, line{lines[y], []int{n}})
			y++
		}
	}
	i.lines = merged
}

// values are the numbers and addresses of a rule.
var values = regexp.MustCompile(`[0-9a-f.:/-]*[0-9][0-9a-fx.:/-]*`)
