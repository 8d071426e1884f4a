#!/bin/bash
# fuzz.sh AMOUNT [FLAG]... fuzzes each target of the tree: for a time such as 20s, or with so many inputs, such as 10000x, which no
# deadline ends. The flags are those of go test. The script fails if a target does; the others run all the same.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

amount=$1
shift
status=0
while IFS=: read -r file target; do
	go test -run '^$' -fuzz "^${target#func }\$" -fuzztime "$amount" "$@" "${file%/*}" || status=1
done < <(grep -roE --include='*_test.go' '^func Fuzz\w+' . | sort)
exit $status
