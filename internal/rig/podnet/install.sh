#!/bin/bash
# Unpacks Open vSwitch, OVN and firewalld for tests, whose packages would start services, installs the
# libraries that they need, dnsmasq without its service, wg(8) and python3 (../launchers), and builds CNI plugins that Debian
# does not have:
#
#   $GUESTWIRE_CACHE/openvswitch/usr/{sbin,bin,lib/openvswitch-switch}     the cache is /var/cache/guestwire by default
#   $GUESTWIRE_CACHE/openvswitch/usr/share/{openvswitch,ovn}/*.ovsschema
#   $GUESTWIRE_CACHE/firewalld/usr/sbin/firewalld
#   $GUESTWIRE_CACHE/flannel/flannel
#   $GUESTWIRE_CACHE/cni/bridge     CNI's bridge plugin of a version that knows vlanTrunk
#
# Needs Debian 12, Go and root. If everything is installed, the script changes nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
# The last version of this module that has the plugin; the plugin's later module, github.com/flannel-io/cni-plugin, is
# not on every mirror.
flannel=github.com/containernetworking/plugins/plugins/meta/flannel@v0.9.1
# Debian's is older than vlanTrunk, which came with 1.3.
bridge=github.com/containernetworking/plugins/plugins/main/bridge@v1.9.1
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

packages=()
for p in dnsmasq-base wireguard-tools python3-minimal dbus-daemon gir1.2-glib-2.0 python3-dbus python3-gi libbpf1 libcap-ng0 libnuma1 libssl3 libunbound8 libxdp1; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || packages+=("$p")
done
ready() { [ -x "$cache/openvswitch/usr/lib/openvswitch-switch/ovs-vswitchd" ] && [ -x "$cache/openvswitch/usr/bin/ovn-controller" ] && [ -x "$cache/firewalld/usr/sbin/firewalld" ]; }

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
build() { # DIRECTORY MODULE: outside of this module, whose go.sum does not have the plugin
	(cd / && CGO_ENABLED=0 GOWORK=off GOTOOLCHAIN=local GOFLAGS=-trimpath GOBIN="$cache/$1" go install "$2")
}
[ -x "$cache/flannel/flannel" ] || build flannel "$flannel"
[ -x "$cache/cni/bridge" ] || build cni "$bridge"
[ ${#packages[@]} = 0 ] && ready && exit

tmp=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
apt update
[ ${#packages[@]} = 0 ] || apt install --no-install-recommends "${packages[@]}"
unpack() { # DIRECTORY PACKAGE...
	mkdir -p "$tmp/$1/root"
	# apt's sandbox user has to write to the directory of the download.
	(cd "$tmp/$1" && apt -o APT::Sandbox::User=root download "${@:2}")
	for deb in "$tmp/$1"/*.deb; do
		dpkg -x "$deb" "$tmp/$1/root"
	done
	rm -rf "${cache:?}/$1"
	mv "$tmp/$1/root" "$cache/$1"
}
unpack openvswitch openvswitch-switch openvswitch-common ovn-central ovn-host ovn-common
unpack firewalld firewalld python3-firewall python3-nftables
ready || { echo "install: files are missing in $cache" >&2; exit 1; }
