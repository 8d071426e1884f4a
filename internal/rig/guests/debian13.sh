#!/bin/bash
# Unpacks the clients of Debian 13 into a root of their own, as they need its C library. No package's scripts run:
#
#   $GUESTWIRE_CACHE/debian13/usr/...     the cache is /var/cache/guestwire by default
#
# The programs' upstream versions are pinned. apt checks the packages by Debian's signature: a point release replaces the
# packages on the mirrors, so a pinned checksum would not last. Needs Debian 12, amd64 and root. If everything is unpacked,
# the script changes nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
# The clients, what judges them, and the shell's programs.
packages=(
	"systemd=257.*" "systemd-resolved=257.*" "dhcpcd-base=1:10.1.*" "busybox=1:1.37.*" udhcpc "klibc-utils=2.0.*" "cloud-init=25.1.*" netplan.io
	passt dbus-daemon iproute2 bash bsdutils coreutils dash findutils grep gzip hostname libc-bin mawk mount passwd procps sed util-linux
)

ready() {
	for program in lib/systemd/systemd-networkd bin/resolvectl sbin/dhcpcd bin/busybox lib/klibc/bin/ipconfig bin/cloud-init sbin/netplan bin/passt; do
		[ -x "$cache/debian13/usr/$program" ] || return
	done
}

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

tmp=$(mktemp -d "$cache/debian13.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp"/{lists,archives}/partial "$tmp"/root/{etc,mnt} "$tmp/root"/usr/{bin,sbin,lib,lib64}
# From where the machine has Debian itself.
apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) trixie main' \
	'Codename: bookworm' 'Component: main' 'Created-By: Packages' | head -n 1 >"$tmp/sources"
# As on a machine without packages, so that apt takes all that they depend on.
apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -qq -o APT::Sandbox::User=root -o Dir::State::Status=/dev/null \
		-o Dir::Etc::SourceList="$tmp/sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
		-o Dir::State::Lists="$tmp/lists" -o Dir::State::extended_states="$tmp/states" -o Dir::Cache::archives="$tmp/archives" \
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@" >&2
}
apt update
apt install --yes --download-only --no-install-recommends "${packages[@]}"

root=$tmp/root
chmod 755 "$root"
for dir in bin sbin lib lib64; do
	ln -s "usr/$dir" "$root/$dir"
done
for deb in "$tmp"/archives/*.deb; do
	dpkg-deb --fsys-tarfile "$deb" | tar -C "$root" -xp --keep-directory-symlink
done
# What the packages' scripts would do, as far as the clients need it.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -sf mawk "$root/usr/bin/awk"
cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt" # cloud-init's Python wants one
ldconfig -r "$root"
chroot "$root" systemd-sysusers 2>/dev/null
chroot "$root" useradd --system --home /usr/lib/dhcpcd --shell /bin/false dhcpcd
chroot "$root" python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.13 >/dev/null
# systemd-resolved's, which other clients would call although it does not run.
rm "$root/usr/sbin/resolvconf"
rm -rf "$root"/usr/share/{man,locale,i18n,zoneinfo}

rm -rf "$cache/debian13"
mv "$root" "$cache/debian13"
ready || { echo "install: files are missing in $cache/debian13" >&2; exit 1; }
