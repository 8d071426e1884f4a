#!/bin/bash
# Installs the Debian packages that the stock kernel runs on: QEMU and kmod. Beside them it unpacks,
# and does not install, Debian's kernel and the static busybox (which would replace an installed one):
#
#   $GUESTWIRE_CACHE/kernel/boot/vmlinuz-*     as it is packaged
#   $GUESTWIRE_CACHE/kernel/boot/vmlinux-*     the same unpacked, for a boot 3 s shorter under emulation
#   $GUESTWIRE_CACHE/kernel/lib/modules/*
#   $GUESTWIRE_CACHE/busybox/bin/busybox
#
# Needs Debian 12 and root. When all is there it changes nothing and takes no time.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

# unpack DIR PACKAGE puts the package's files into $cache/DIR, all of them or none.
unpack() {
	tmp=$(mktemp -d "$cache/$1.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	chmod 755 "$tmp"
	# apt's sandbox user has to write to the directory of the download.
	(cd "$tmp" && apt -o APT::Sandbox::User=root download "$2")
	mkdir "$tmp/root"
	dpkg -x "$tmp"/*.deb "$tmp/root"
	if [ "$1" = kernel ]; then
		local image offset
		image=$(echo "$tmp"/root/boot/vmlinuz-*)
		depmod -b "$tmp/root" "${image#*/vmlinuz-}"
		# An ELF file behind a loader and the magic of xz; QEMU boots it as such (PVH).
		offset=$(LC_ALL=C grep -aboP '\xfd7zXZ\x00' "$image" | cut -d: -f1)
		xz -dc --single-stream < <(tail -c "+$((${offset%%$'\n'*} + 1))" "$image") >"${image/vmlinuz/vmlinux}"
		# A libvirt or QEMU of another user reads them; the package says 0600.
		chmod 644 "$tmp"/root/boot/vmlinu*
	fi
	rm -rf "${cache:?}/$1"
	mv "$tmp/root" "$cache/$1"
	rm -rf "$tmp"
}

packages=()
for p in qemu-system-x86 kmod xz-utils; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || packages+=("$p")
done
ready() {
	[ -x "$cache/busybox/bin/busybox" ] &&
		compgen -G "$cache/kernel/lib/modules/*/modules.dep" >/dev/null &&
		compgen -G "$cache/kernel/boot/vmlinux-*" >/dev/null
}
[ ${#packages[@]} = 0 ] && ready && exit

apt update
[ ${#packages[@]} = 0 ] || apt install --no-install-recommends "${packages[@]}"
[ -x "$cache/busybox/bin/busybox" ] || unpack busybox busybox-static
image=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
compgen -G "$cache/kernel/boot/vmlinux-*" >/dev/null || unpack kernel "${image:?no kernel package behind linux-image-amd64}"
ready || { echo "install: files are missing in $cache" >&2; exit 1; }
echo "$image and busybox-static are unpacked in $cache" >&2
