# crash.awk writes the tables of docs/proofs/crash.md: a section for each kernel, with a row for each kind of trials. It
# reads rows in any order; a row of a kind that comes again replaces the former one. A kernel with one or two trials a
# kind has no table.
/^### / { at = $0; if (!(at in seen)) { seen[at] = 1; name[++sections] = at } next }
/^[|] harm to/ { head = $0; next }
/^[|] ---/ { line = $0; next }
/^[|] / {
	split($0, column, " [|] ")
	if (!((at, column[1]) in row)) kinds[at]++
	if (column[3] > 2) many[at] = 1
	row[at, column[1]] = $0
	next
}
/^[0-9]+ kinds, / { few[at] = $0; next }
NF && at { rest[at] = $0 }
END {
	for (i = 1; i <= sections; i++) {
		printf "%s\n\n", name[i]
		if (many[name[i]]) {
			printf "%s\n%s\n", head, line
			fflush()
			for (k in row) if (substr(k, 1, length(name[i]) + 1) == name[i] SUBSEP) print row[k] | "sort"
			close("sort")
		} else {
			print kinds[name[i]] ? kinds[name[i]] " kinds, one or two trials each." : few[name[i]]
		}
		printf "\n%s\n", rest[name[i]]
		if (i < sections) print ""
	}
}
