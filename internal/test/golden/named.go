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

// readChains are the numbers of a directory's files, by key and content.
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

// parseChains is the reverse of files.
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

// lists finds the lists of a short text: the file of their names, and the words. Each is called for each line of the
// text; refs is nil where there is no list.
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

// named is a name and a number in a short text.
type named struct {
	key    string
	number int
}

// namedIn are the numbers that a short text names.
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

const chainsHead = `# Each chain and set of the texts in the directory above, once. They name a chain and its number; without a number it
# is #1. "#3" before a rule: only chain #3 has it. "not #3": all but #3 have it. Without: all have it.
`

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
