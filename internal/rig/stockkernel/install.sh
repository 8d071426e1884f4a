#!/bin/bash
# Installs the Debian packages that the stock kernels run on: QEMU and kmod. Beside them it unpacks,
# and does not install, Debian's kernels and the static busybox (which would replace an installed one):
#
#   $GUESTWIRE_CACHE/kernel/boot/vmlinuz-*     as it is packaged
#   $GUESTWIRE_CACHE/kernel/boot/vmlinux-*     the same unpacked, for a boot 3 s shorter under emulation
#   $GUESTWIRE_CACHE/kernel/lib/modules/*
#   $GUESTWIRE_CACHE/kernel-6.12/...           the same of Debian 13's kernel, which Debian 12's backports have
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

# unpack DIR PACKAGE [OPTION]... puts the package's files into $cache/DIR, all of them or none. The options are apt's.
unpack() {
	local root=$tmp/$1/root
	mkdir -p "$root"
	# apt's sandbox user has to write to the directory of the download.
	(cd "$tmp/$1" && apt -o APT::Sandbox::User=root "${@:3}" download "$2")
	dpkg -x "$tmp/$1"/*.deb "$root"
	if [[ $1 == kernel* ]]; then
		local image
		image=$(echo "$root"/boot/vmlinuz-*)
		# Under emulation a module that is unpacked loads sooner.
		find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
		depmod -b "$root" "${image#*/vmlinuz-}"
		payload "$image" >"${image/vmlinuz/vmlinux}"
		# A libvirt or QEMU of another user reads them; the package says 0600.
		chmod 644 "$root"/boot/vmlinu*
	fi
	rm -rf "${cache:?}/$1"
	mv "$root" "$cache/$1"
}

# payload IMAGE prints the ELF file in an image; QEMU boots it as such (PVH). The numbers are offsets of setup_sects,
# payload_offset and payload_length (Linux, Documentation/arch/x86/boot.rst). A payload ends with its unpacked size.
payload() {
	local image=$1 start length program=xz
	field() { od -An -v -tu"$2" -j "$(($1))" -N "$2" "$image"; }
	start=$((($(field 0x1f1 1) + 1) * 512 + $(field 0x248 4)))
	length=$(($(field 0x24c 4) - 4))
	(($(field start 4) != 0xfd2fb528)) || program=zstd
	dd if="$image" bs=1M iflag=skip_bytes,count_bytes skip="$start" count="$length" status=none | "$program" -dcq
}

packages=()
for p in qemu-system-x86 kmod xz-utils zstd; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || packages+=("$p")
done
# has DIR succeeds if a kernel is unpacked there.
has() {
	compgen -G "$cache/$1/lib/modules/*/modules.dep" >/dev/null && compgen -G "$cache/$1/boot/vmlinux-*" >/dev/null
}
ready() { [ -x "$cache/busybox/bin/busybox" ] && has kernel && has kernel-6.12; }
[ ${#packages[@]} = 0 ] && ready && exit

tmp=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
apt update
[ ${#packages[@]} = 0 ] || apt install --no-install-recommends "${packages[@]}"
# image [OPTION]... prints the package after linux-image-amd64.
image() { apt-cache "$@" depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -1; }
[ -x "$cache/busybox/bin/busybox" ] || unpack busybox busybox-static
if ! has kernel; then
	package=$(image)
	unpack kernel "${package:?no kernel package behind linux-image-amd64}"
fi
if ! has kernel-6.12; then
	mkdir -p "$tmp/lists/partial"
	# From where the machine has Debian itself.
	apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) bookworm-backports main' \
		'Codename: bookworm' 'Component: main' 'Created-By: Packages' | head -n 1 >"$tmp/sources"
	backports=(-o APT::Sandbox::User=root -o Dir::Etc::SourceList="$tmp/sources" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$tmp/lists")
	apt "${backports[@]}" update
	backports+=(-t bookworm-backports)
	package=$(image "${backports[@]}")
	[[ $package == linux-image-6.12.* ]] || { echo "install: Debian's backports have ${package:-no kernel} and not Linux 6.12" >&2; exit 1; }
	unpack kernel-6.12 "$package" "${backports[@]}"
fi
ready || { echo "install: files are missing in $cache" >&2; exit 1; }
echo "Debian's kernels and busybox-static are unpacked in $cache" >&2
