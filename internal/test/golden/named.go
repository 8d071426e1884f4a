package golden

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// readChains returns the numbers that a directory's files give, by key and content. A key is a file's name and what has
// numbers there, such as "netdev chain guest".
func readChains(dir string) (map[string]map[string]int, error) {
	all := map[string]map[string]int{}
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, parseChains(strings.TrimSuffix(filepath.Base(file), ".txt"), string(text)))
	}
	return all, nil
}

// parseChains reads a file that Chains.files has written, and returns what readChains does. File is its name.
func parseChains(file, text string) map[string]map[string]int {
	all := map[string]map[string]int{}
	var numbers []int
	var contents map[int]string
	key := ""
	done := func() {
		if key != "" {
			all[key] = map[string]int{}
		}
		for _, n := range numbers {
			all[key][contents[n]] = n
		}
	}
	for l := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(text, chainsHead), "\n"), "\n") {
		gutter, rule, isRule := strings.Cut(l, "\t")
		if !isRule && l != "" {
			done()
			at := strings.LastIndex(l, " ")
			key, numbers, contents = file+" "+l[:max(at, 0)], parseNumbers(l[at+1:]), map[int]string{}
			continue
		}
		without, not := strings.CutPrefix(gutter, "not ")
		for _, n := range numbers {
			if isRule && (gutter == "" || slices.Contains(parseNumbers(without), n) != not) {
				contents[n] += rule + "\n"
			}
		}
	}
	done()
	return all
}

// lists calls each for each line of a short text. A line that lists what a table has, such as "guest #4, to-guest",
// comes with what it names in refs; refs is nil for other lines. A list may have several lines: it comes with its last
// one.
func lists(short string, each func(line string, refs []named)) {
	file, list := "", ""
	for l := range strings.SplitSeq(short, "\n") {
		if m := restore.FindStringSubmatch(l); m != nil {
			file = m[1]
		}
		if m := nftTable.FindStringSubmatch(l); m != nil {
			file = m[1]
		}
		if file == "" || !strings.HasPrefix(l, "\t") || strings.HasSuffix(l, "{") || strings.HasPrefix(l, "\t\t") {
			each(l, nil)
			continue
		}
		if list += l[1:]; strings.HasSuffix(list, ",") {
			list += " "
			continue
		}
		var refs []named
		for word := range strings.SplitSeq(list, ", ") {
			name, number, ok := strings.Cut(word, " #")
			n := 1
			if ok {
				n, _ = strconv.Atoi(number)
			}
			if !strings.Contains(name, " ") {
				name = "chain " + name
			}
			refs = append(refs, named{file + " " + name, n})
		}
		each(l, refs)
		list = ""
	}
}

// named is a key and a number that a short text names.
type named struct {
	key    string
	number int
}

// namedIn returns the numbers that a short text names, by their keys.
func namedIn(short string) map[string]int {
	numbers := map[string]int{}
	lists(short, func(_ string, refs []named) {
		for _, r := range refs {
			numbers[r.key] = r.number
		}
	})
	return numbers
}

// expand puts the chains in place of their names.
func expand(short string, all map[string]map[string]int) string {
	var lines []string
	lists(short, func(l string, list []named) {
		if list == nil {
			lines = append(lines, l)
			return
		}
		var refs []reference
		for _, r := range list {
			for content, n := range all[r.key] {
				if n == r.number {
					refs = append(refs, reference{r.key, content})
				}
			}
		}
		if file, _, _ := strings.Cut(list[0].key, " "); strings.HasSuffix(file, "tables") {
			lines = append(lines, restoreLines(refs)...)
		} else {
			lines = append(lines, tableLines(refs)...)
		}
	})
	return strings.Join(lines, "\n")
}

// chainsHead begins each file of chains.
const chainsHead = `# Each chain and set of the texts in the directory above, once. They name a chain and its number; without a number it
# is #1. "#3" before a rule: only chain #3 has it. "not #3": all but #3 have it. Without: all have it.
`

// parseNumbers returns the numbers of a text such as "#1-3,7".
func parseNumbers(text string) (list []int) {
	for word := range strings.SplitSeq(strings.TrimPrefix(text, "#"), ",") {
		from, to, _ := strings.Cut(word, "-")
		first, _ := strconv.Atoi(from)
		last, _ := strconv.Atoi(cmp.Or(to, from))
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	return list
}
