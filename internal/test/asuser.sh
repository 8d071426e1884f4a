#!/bin/bash
# asuser.sh COMMAND... runs a command as an ordinary user in a copy of this tree, as a contributor would: with an empty HOME, no
# variables of the caller, and a /dev/net/tun that everybody can open, as udev makes it. Modules come from the caller's module
# cache, others by the caller's GOPROXY. What the user builds stays in GUESTWIRE_CACHE.
#
# Needs root. The user is a number without an account. The copy is made because the caller's home is often closed to others.
set -euo pipefail
cd "$(dirname "$0")/../.."

user=4712
build=${GUESTWIRE_CACHE:-/var/cache/guestwire}/user-build
dir=$(mktemp -d /tmp/guestwire-user-XXXXXX)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
mkdir "$dir"/{tree,home}
mkdir -p "$build" "$(go env GOMODCACHE)/cache/download"
if git rev-parse --git-dir >/dev/null 2>&1; then
	git ls-files -co --exclude-standard -z
else
	find . -type f -not -path './bin/*' -print0
fi | tar --create --null --ignore-failed-read --files-from - | tar --extract --directory "$dir/tree"
cp -r "$(go env GOMODCACHE)/cache/download" "$dir/modules" # zip files, which go verifies
chown -R $user:$user "$dir"/{tree,home} "$build"

# as runs a command as the user. What it mounts ends with it.
export dir user build PROXY
PROXY=file://$dir/modules,$(go env GOPROXY)
as() {
	unshare --mount --propagation private bash -c '
		set -e
		mkdir -p /dev/net
		mount -t tmpfs -o mode=755,dev guestwire /dev/net
		mknod -m 666 /dev/net/tun c 10 200
		cd "$dir/tree"
		exec setpriv --reuid "$user" --regid "$user" --clear-groups env -i \
			HOME="$dir/home" PATH="$PATH" GOCACHE="$build" GOPROXY="$PROXY" "$@"' bash "$@"
}
as sh -c 'go version >/dev/null && unshare --map-root-user --net true && : <>/dev/net/tun' || {
	echo "asuser.sh: an ordinary user cannot run go, make a user namespace (sysctl user.max_user_namespaces), or open /dev/net/tun" >&2
	exit 1
}
as "$@"
