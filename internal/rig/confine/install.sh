#!/bin/bash
# Unpacks what the tests of SELinux and AppArmor call, and installs nothing:
#
#   $GUESTWIRE_CACHE/confine/usr/bin/secilc           the cache is /var/cache/guestwire by default
#   $GUESTWIRE_CACHE/confine/sbin/apparmor_parser     with the abstractions that profiles include
#
# Needs Debian 12 and root. When all is there it changes nothing and takes no time.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

ready() { [ -x "$cache/confine/usr/bin/secilc" ] && [ -x "$cache/confine/sbin/apparmor_parser" ]; }

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

tmp=$(mktemp -d "$cache/confine.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
apt update
# apt's sandbox user has to write to the directory of the download.
(cd "$tmp" && apt -o APT::Sandbox::User=root download secilc libsepol2 apparmor libapparmor1)
for package in "$tmp"/*.deb; do
	dpkg -x "$package" "$tmp/root"
done
chmod 755 "$tmp/root"
rm -rf "${cache:?}/confine"
mv "$tmp/root" "$cache/confine"
ready || { echo "install: files are missing in $cache" >&2; exit 1; }
