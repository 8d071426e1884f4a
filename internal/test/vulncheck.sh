#!/bin/bash
# vulncheck.sh GOVULNCHECK MODULE... looks for known vulnerabilities in what the modules' packages call. VULNDB names a database
# other than Go's own: a URL, or file:///DIRECTORY. The last line says how it ended. The exit code is 0 if nothing was found, 3 if
# something was, and 1 if a module could not be looked at, be it that the database is not reachable or that VULNDB is no URL.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

govulncheck=$1
shift
found=() failed=()
for module; do
	out=$(cd "$module" && GOWORK=off "$govulncheck" ${VULNDB:+-db "$VULNDB"} ./... 2>&1)
	case $? in
		0) ;;
		3) found+=("$module"); printf '%s:\n%s\n' "$module" "$out" ;;
		*) failed+=("$module"); printf '%s: %s\n' "$module" "$out"
			# Without a database the next module gets no further.
			if grep -q 'fetching vulnerabilities' <<<"$out"; then
				echo "govulncheck has looked for nothing: its database is not reachable; VULNDB=file:///DIRECTORY names a copy of it"
				exit 1
			elif grep -q 'unsupported scheme' <<<"$out"; then
				echo "govulncheck has looked for nothing: VULNDB=$VULNDB is no URL of a database; write VULNDB=file:///DIRECTORY"
				exit 1
			fi ;;
	esac
done
if [ ${#failed[@]} != 0 ]; then
	echo "govulncheck has failed in ${failed[*]}${found:+, and calls of vulnerable functions are in ${found[*]}}"
	exit 1
elif [ ${#found[@]} != 0 ]; then
	echo "calls of vulnerable functions are in ${found[*]}"
	exit 3
fi
echo "no calls of functions that are known to be vulnerable in $*"
