#!/bin/bash
# Installs the Debian package of the installer's kernel and initramfs, which the tutorials boot. Unpacks DHCP clients for
# tests, and does not install them:
#
#   $GUESTWIRE_CACHE/dhcpcd/usr/sbin/dhcpcd                the cache is /var/cache/guestwire by default
#   $GUESTWIRE_CACHE/udhcpc/etc/udhcpc/default.script      Debian's script for busybox's client
#   $GUESTWIRE_CACHE/connman/usr/sbin/connmand
#   $GUESTWIRE_CACHE/dhcp6c/usr/sbin/dhcp6c                WIDE's DHCPv6 client, of many routers
#   $GUESTWIRE_CACHE/ifupdown/sbin/ifup
#   $GUESTWIRE_CACHE/net-tools/sbin/route                  which cloud-init has ifupdown call
#   $GUESTWIRE_CACHE/klibc/usr/lib/klibc/bin/ipconfig      which reads ip= in an initramfs
#
# ISC's client and busybox come by internal/rig/vm/install.sh, Debian 13's clients by debian13.sh. Needs Debian 12 and
# root. When all is there it changes nothing and takes no time.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

"$(dirname "$0")/debian13.sh"

ready() {
	[ -x "$cache/dhcpcd/usr/sbin/dhcpcd" ] && [ -x "$cache/udhcpc/etc/udhcpc/default.script" ] &&
		[ -x "$cache/connman/usr/sbin/connmand" ] && [ -x "$cache/dhcp6c/usr/sbin/dhcp6c" ] && [ -x "$cache/ifupdown/sbin/ifup" ] &&
		[ -x "$cache/net-tools/sbin/route" ] && [ -x "$cache/klibc/usr/lib/klibc/bin/ipconfig" ] &&
		[ -d /usr/lib/debian-installer/images/12/amd64/text ]
}

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

tmp=$(mktemp -d "$cache/clients.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
apt update
apt install debian-installer-12-netboot-amd64
# apt's sandbox user has to write to the directory of the download.
(cd "$tmp" && apt -o APT::Sandbox::User=root download dhcpcd-base udhcpc connman ifupdown net-tools klibc-utils libklibc wide-dhcpv6-client libfl2)
unpack() { # DIRECTORY PACKAGE...
	mkdir "$tmp/$1"
	for package in "${@:2}"; do
		dpkg -x "$tmp/$package"_*.deb "$tmp/$1"
	done
	rm -rf "${cache:?}/$1"
	mv "$tmp/$1" "$cache/$1"
}
unpack dhcpcd dhcpcd-base
for package in udhcpc connman ifupdown net-tools; do
	unpack "$package" "$package"
done
unpack klibc klibc-utils libklibc
unpack dhcp6c wide-dhcpv6-client libfl2
ready || { echo "install: files are missing in $cache" >&2; exit 1; }
