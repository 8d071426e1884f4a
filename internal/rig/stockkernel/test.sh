#!/bin/bash
# test.sh PACKAGE [FLAG]... runs a package's tests under the stock kernel, such as
#
#   internal/rig/stockkernel/test.sh phase1 -test.v -test.run TestWiring
#
# The flags are those of the test binary (go help testflag). GUESTWIRE_SELECT=kernels leaves the tests in
# which the kernel has a say. The kernel is Debian 12's; KERNEL=6.12 takes Debian 13's. After TIMEOUT minutes, 50 if not set, the test binary ends and says what it waited for. If it
# cannot, the kernel ends ten minutes later. Needs bin/stockkernel ("make bin/stockkernel").
set -euo pipefail
cd "$(dirname "$0")/../../.."

root=$PWD package=$1
shift
binary=$root/bin/debian-${KERNEL:-6.1}/${package//\//-}.test # a line for another kernel may run beside
mkdir -p "${binary%/*}"
rm -f "$binary"
go test -c -o "$binary" "./$package"
cd "$package"
minutes=${TIMEOUT:-50}
[[ $minutes =~ ^[0-9]+$ ]] || { echo "test.sh: TIMEOUT=$minutes: want minutes, such as 50" >&2; exit 2; }
# shellcheck disable=SC2086 # a list of words
exec "$root/bin/stockkernel" ${MACHINE:-} -kernel "${KERNEL:-6.1}" -timeout "$((minutes + 10))m" -- "$binary" -test.timeout "${minutes}m" "$@"
