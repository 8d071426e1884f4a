#!/bin/bash
# Unpacks Open vSwitch and OVN for tests, whose packages would start services, and installs the
# libraries that they need:
#
#   $GUESTWIRE_CACHE/openvswitch/usr/{sbin,bin,lib/openvswitch-switch}     the cache is /var/cache/guestwire by default
#   $GUESTWIRE_CACHE/openvswitch/usr/share/{openvswitch,ovn}/*.ovsschema
#
# Needs Debian 12 and root. If everything is installed, the script changes nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

libraries=()
for p in libbpf1 libcap-ng0 libnuma1 libssl3 libunbound8 libxdp1; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || libraries+=("$p")
done
ready() { [ -x "$cache/openvswitch/usr/lib/openvswitch-switch/ovs-vswitchd" ] && [ -x "$cache/openvswitch/usr/bin/ovn-controller" ]; }

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
[ ${#libraries[@]} = 0 ] && ready && exit

tmp=$(mktemp -d "$cache/openvswitch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
apt update
[ ${#libraries[@]} = 0 ] || apt install --no-install-recommends "${libraries[@]}"
packages=(openvswitch-switch openvswitch-common ovn-central ovn-host ovn-common)
# apt's sandbox user has to write to the directory of the download.
(cd "$tmp" && apt -o APT::Sandbox::User=root download "${packages[@]}")
mkdir "$tmp/root"
for deb in "$tmp"/*.deb; do
	dpkg -x "$deb" "$tmp/root"
done
rm -rf "${cache:?}/openvswitch"
mv "$tmp/root" "$cache/openvswitch"
ready || { echo "install: files are missing in $cache" >&2; exit 1; }
