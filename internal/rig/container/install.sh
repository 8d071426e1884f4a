#!/bin/bash
# Unpacks podman for tests, and what Debian's podman needs and this machine lacks. Installs nothing: podman's packages
# would bring a service and users' subordinate ids.
#
#   $GUESTWIRE_CACHE/podman/usr/...     the cache is /var/cache/guestwire by default
#
# Needs Debian 12 and root. If everything is unpacked, the script changes nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

ready() {
	for program in podman conmon crun slirp4netns newuidmap; do
		[ -x "$cache/podman/usr/bin/$program" ] || return
	done
	[ -x "$cache/podman/usr/lib/podman/netavark" ] && [ -x "$cache/podman/usr/libexec/podman/catatonit" ]
}

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

tmp=$(mktemp -d "$cache/podman.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
apt update
mkdir -p "$tmp/archives/partial"
# The packages and all that they depend on and that is not installed. apt's sandbox user cannot write to the directory.
apt -o APT::Sandbox::User=root -o Dir::Cache::archives="$tmp/archives" install --download-only --reinstall --no-install-recommends \
	podman conmon crun netavark aardvark-dns slirp4netns uidmap catatonit
# A merged /usr, as the machine has: the files are copied over its root.
mkdir -p "$tmp/root"/usr/{bin,sbin,lib,lib64}
for dir in bin sbin lib lib64; do
	ln -s "usr/$dir" "$tmp/root/$dir"
done
for deb in "$tmp"/archives/*.deb; do
	dpkg-deb --fsys-tarfile "$deb" | tar -C "$tmp/root" -xp --keep-directory-symlink
done
rm -rf "${cache:?}/podman"
mv "$tmp/root" "$cache/podman"
ready || { echo "install: files are missing in $cache/podman" >&2; exit 1; }
