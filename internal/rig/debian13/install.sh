#!/bin/bash
# Installs a root of Debian 13, in which run.sh runs the tests: the packages that the tests and the tutorials take from
# Debian 12 elsewhere. Their scripts run, as on a machine:
#
#   $GUESTWIRE_CACHE/trixie/usr/...     0.8 GB; the cache is /var/cache/guestwire by default
#
# apt checks the packages by Debian's signature. Needs Debian 12, amd64 and root. If the root is there, the script changes nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
packages=(
	# of internal/test/install.sh, without a compiler
	nftables iptables iproute2 iputils-ping ethtool tcpdump strace procps util-linux kmod containernetworking-plugins
	git curl libvirt-clients libxml2-utils passt bind9-dnsutils dnsmasq-base
	# of the tutorials and make demo, and the user who runs libvirt's guests
	make ca-certificates qemu-system-x86 libvirt-daemon-system libvirt-daemon-driver-qemu debian-installer-13-netboot-amd64
)

# The file with the list of packages comes last.
ready() { [ "$(cat "$cache/trixie/packages" 2>/dev/null)" = "${packages[*]}" ]; }

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

if ! command -v mmdebstrap >/dev/null; then
	apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }
	apt update
	apt install --no-install-recommends mmdebstrap
fi
tmp=$(mktemp -d "$cache/trixie.XXXXXX")
trap 'rm -rf --one-file-system "$tmp"' EXIT
# From where the machine has Debian itself.
source=$(apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) trixie main' \
	'Codename: bookworm' 'Component: main' 'Created-By: Packages' | head -n 1)
# Its mounts end with it, also if it is killed.
unshare --mount --propagation private mmdebstrap --quiet --mode=root --variant=apt --aptopt='APT::Install-Recommends "false"' --include="$(IFS=,; echo "${packages[*]}")" \
	trixie "$tmp/root" "$source" 9>&-
rm -rf "$tmp"/root/usr/lib/debian-installer/images/13/amd64/gtk # the installer with a mouse
echo "${packages[*]}" >"$tmp/root/packages"
rm -rf "$cache/trixie"
mv "$tmp/root" "$cache/trixie"
ready || { echo "install: no root in $cache/trixie" >&2; exit 1; }
