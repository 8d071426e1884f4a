package golden

import (
	"fmt"
	"strings"
)

// Variant shows a text by its differences to a base, for a file beside the base's. A group has a head, unless it begins
// with a line that the base has once and that leaves: the line that encloses the group, such as a chain's, and the one
// before it. Of what leaves in a row, the first two lines are shown.
//
//	@@ chain to-udp { | udp dport 68 accept
//	-		udp dport 547 accept
//	+		udp dport 546 accept
func Variant(base, text string) string {
	var b strings.Builder
	old, lines := strings.Split(base, "\n"), strings.Split(text, "\n")
	same, times := common(old, lines), map[string]int{}
	for _, line := range old {
		times[line]++
	}
	for i, j := 0, 0; i < len(old) || j < len(lines); {
		if i < len(old) && same[i] == j {
			i, j = i+1, j+1
			continue
		}
		if i == len(old) || same[i] >= 0 || times[old[i]] > 1 {
			b.WriteString("@@ " + head(lines, j) + "\n")
		}
		gone := 0
		for ; i < len(old) && same[i] < 0; i++ {
			if gone++; gone <= 2 {
				b.WriteString("-" + old[i] + "\n")
			}
		}
		if gone > 2 {
			fmt.Fprintf(&b, "- and %d more\n", gone-2)
		}
		end := len(lines)
		if i < len(old) {
			end = same[i]
		}
		for ; j < end; j++ {
			b.WriteString("+" + lines[j] + "\n")
		}
	}
	return b.String()
}

// head names the place of a line.
func head(lines []string, at int) string {
	if at == 0 {
		return "first"
	}
	depth := func(i int) int { return len(lines[i]) - len(strings.TrimLeft(lines[i], "\t ")) }
	short := func(i int) string {
		line := []rune(strings.TrimSpace(lines[i]))
		return string(line[:min(len(line), 60)])
	}
	for i := at - 1; i >= 0 && at < len(lines); i-- {
		if depth(i) < depth(at) && lines[i] != "" {
			if i == at-1 {
				return short(i)
			}
			return short(i) + " | " + short(at-1)
		}
	}
	return short(at - 1)
}

// common has for each line of a its place in b, in a longest common subsequence, or -1.
func common(a, b []string) []int {
	first, last := 0, 0
	for first < min(len(a), len(b)) && a[first] == b[first] {
		first++
	}
	for last < min(len(a), len(b))-first && a[len(a)-1-last] == b[len(b)-1-last] {
		last++
	}
	la, lb := len(a)-first-last, len(b)-first-last
	length := make([][]int32, la+1) // of what the rests from there have in common
	for i := range length {
		length[i] = make([]int32, lb+1)
	}
	for i := la - 1; i >= 0; i-- {
		for j := lb - 1; j >= 0; j-- {
			length[i][j] = max(length[i+1][j], length[i][j+1])
			if a[first+i] == b[first+j] {
				length[i][j] = length[i+1][j+1] + 1
			}
		}
	}
	same := make([]int, len(a))
	for i := range same {
		switch {
		case i < first:
			same[i] = i
		case i >= first+la:
			same[i] = i - len(a) + len(b)
		default:
			same[i] = -1
		}
	}
	for i, j := 0, 0; i < la && j < lb; {
		switch {
		case a[first+i] == b[first+j]:
			same[first+i] = first + j
			i, j = i+1, j+1
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	return same
}
