#!/bin/bash
# Installs the Debian packages whose programs the tests of the library and of the examples call. gcc is for the race detector;
# libvirt's and libxml's programs check elements against libvirt's schema. No package starts a service.
#
# Needs Debian 12 and root. If everything is installed, the script changes nothing.
set -euo pipefail

packages=(
	nftables iptables iproute2 iputils-ping ethtool tcpdump strace procps util-linux kmod containernetworking-plugins
	gcc libc6-dev git curl libvirt-clients libxml2-utils passt bind9-dnsutils dnsmasq-base
)
missing=()
for p in "${packages[@]}"; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} = 0 ] && exit

export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=300 update
apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
