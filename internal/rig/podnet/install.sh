#!/bin/bash
# Unpacks Open vSwitch, OVN and firewalld for tests, whose packages would start services, installs the
# libraries that they need, dnsmasq without its service, wg(8) and python3 (../launchers), and builds CNI plugins that Debian
# does not have:
#
#   $GUESTWIRE_CACHE/openvswitch/usr/{sbin,bin,lib/openvswitch-switch}     the cache is /var/cache/guestwire by default
#   $GUESTWIRE_CACHE/openvswitch/usr/share/{openvswitch,ovn}/*.ovsschema
#   $GUESTWIRE_CACHE/firewalld/usr/sbin/firewalld
#   $GUESTWIRE_CACHE/flannel/flannel
#   $GUESTWIRE_CACHE/cni-plugins    CNI's reference plugins, newer than Debian's, and their version
#
# Needs Debian 12, Go and root. If everything is installed, the script changes nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
# The last version of this module that has the plugin; the plugin's later module, github.com/flannel-io/cni-plugin, is
# not on every mirror.
flannel=github.com/containernetworking/plugins/plugins/meta/flannel@v0.9.1
# The current release. Debian's is 1.1.1.
plugins=github.com/containernetworking/plugins/plugins@v1.10.0
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
# Outside of this module, whose go.sum does not have the plugins. Go fetches a newer one of itself if they need it.
build() { # DIRECTORY PACKAGE...
	(cd / && CGO_ENABLED=0 GOWORK=off GOTOOLCHAIN=auto GOFLAGS=-trimpath GOBIN="$cache/$1" go install "${@:2}")
}
[ -x "$cache/flannel/flannel" ] || build flannel "$flannel"
if [ "$(cat "$cache/cni-plugins/version" 2>/dev/null)" != "$plugins" ]; then
	build cni-plugins "${plugins/@//main/bridge@}" "${plugins/@//main/ptp@}" "${plugins/@//main/macvlan@}" \
		"${plugins/@//ipam/host-local@}" "${plugins/@//ipam/static@}" "${plugins/@//meta/portmap@}"
	echo "$plugins" >"$cache/cni-plugins/version"
fi
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
