#!/bin/bash
# Unpacks Debian's containerd, runc and etcd for tests, and installs nothing: the packages would bring services.
#
#   $GUESTWIRE_CACHE/containerd/usr/bin/containerd     the cache is /var/cache/guestwire by default
#
# Needs Debian 12 and root. If everything is unpacked, the script changes nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

ready() {
	for program in bin/containerd bin/containerd-shim-runc-v2 bin/ctr bin/etcd sbin/runc; do
		[ -x "$cache/containerd/usr/$program" ] || return
	done
}

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

tmp=$(mktemp -d "$cache/containerd.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
apt update
# What they link is part of every Debian: libc6 and libseccomp2. apt's sandbox user cannot write to the directory.
(cd "$tmp" && apt -o APT::Sandbox::User=root download containerd runc etcd-server)
for package in "$tmp"/*.deb; do
	dpkg -x "$package" "$tmp/root"
done
chmod 755 "$tmp/root"
rm -rf "${cache:?}/containerd"
mv "$tmp/root" "$cache/containerd"
ready || { echo "install: files are missing in $cache/containerd" >&2; exit 1; }
