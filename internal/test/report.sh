#!/bin/bash
# report.sh NAME reads commands, one a line, and runs each, whatever became of the others. A command behind "& " runs beside
# the ones below it, and its lines come last. They print what "go test -json" prints. The script shows how each package ended, what failed, the ten slowest tests, the time since STARTED, which make
# sets, and why tests were skipped. The last line is "N passed, N failed, N skipped". A test with subtests is counted through
# them. The script fails if a command or a test does, if no test passed, or if the run has changed /etc/resolv.conf. bin/NAME.json has all that
# the commands printed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

name=$1
commands=$(cat)
resolv=$(cat /etc/resolv.conf)
status=0
# gotestsum takes what a command prints to stderr for errors, and counts them: it goes to 3.
bin/gotestsum-v1.13.0 --raw-command --format pkgname-and-test-fails --format-hide-empty-pkg --hide-summary skipped --jsonfile "bin/$name.json" -- \
	bash -c '
		exec 2>&3
		status=0 beside=()
		trap "kill 0" INT # a command beside the others ignores it
		run() { bash -o pipefail -c "$1" </dev/null; }
		while read -r line; do
			if [ "${line#& }" = "$line" ]; then
				run "$line" || status=1
			else
				run "${line#& }" >"bin/$2-${#beside[@]}.json" &
				beside+=($!)
			fi
		done <<<"$1"
		for i in "${!beside[@]}"; do
			wait "${beside[i]}" || status=1
			cat "bin/$2-$i.json"
			rm "bin/$2-$i.json"
		done
		exit $status' \
	commands "$commands" "$name" 3>&2 || status=1
if [ "$resolv" != "$(cat /etc/resolv.conf)" ]; then
	echo "FAIL: /etc/resolv.conf is not what it was"
	status=1
fi

echo
echo "The slowest tests:"
bin/gotestsum-v1.13.0 tool slowest --num 10 --jsonfile "bin/$name.json"
echo
seconds=$(($(date +%s) - STARTED))
echo "make $name took $((seconds / 60)) min $((seconds % 60)) s"

# A reason is the last line that the test printed with a file and a line number. A test's parents end after it. What is left to
# one kernel (nstest.KernelDecides) counts as nothing under the others.
awk -v status=$status '
	function field(key) {
		if (!match($0, "\"" key "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
		return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 5)
	}
	{ action = field("Action"); package = field("Package") " "; test = package field("Test") }
	action == "output" && match($0, "\"Output\":\" *[a-z0-9_]+\\.go:[0-9]+: ") {
		reason[test] = substr($0, RSTART + RLENGTH)
		sub(/\\n"}$/, "", reason[test])
	}
	action != "pass" && action != "fail" && action != "skip" { next }
	action == "fail" && !failing[test] { failed++ }
	test != package && !parent[test] {
		if (action == "pass") passed++
		if (action == "skip" && reason[test] != "no kernel decides it") { skipped++; reasons[reason[test]]++ }
	}
	test != package {
		for (above = test; sub(/\/[^\/]*$/, "", above) && length(above) > length(package); ) {
			parent[above] = 1
			if (action == "fail") failing[above] = 1
		}
		if (action == "fail") failing[package] = 1
	}
	END {
		for (text in reasons) print "skipped " reasons[text] ": " text
		if ((status || !passed) && !failed) failed = 1
		print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped"
		exit failed > 0
	}' "bin/$name.json" || status=1
exit $status
