#!/bin/sh
# Installs what the guests of package vm need. Debian packages: those of ../stockkernel/install.sh (QEMU, a stock kernel,
# busybox), libvirt, its schema checker, passt. Only unpacked: ISC's DHCP client; systemd-networkd and NetworkManager, which
# would configure this machine, as cloud-init with netplan and Python would; genisoimage; OVMF and GRUB's image for the
# network; a kernel with CONFIG_IP_PNP, which Debian's lacks. Of Debian's backports: libvirt, as Debian 12's was built
# without passt, and QEMU, as Debian 12's has no card with virtual functions:
#
#   $GUESTWIRE_CACHE/dhclient/sbin/dhclient     the cache is /var/cache/guestwire by default
#   $GUESTWIRE_CACHE/managers/lib/systemd/systemd-networkd
#   $GUESTWIRE_CACHE/managers/usr/sbin/NetworkManager
#   $GUESTWIRE_CACHE/cloudinit/usr/bin/python3.11
#   $GUESTWIRE_CACHE/firmware/usr/share/OVMF/OVMF_CODE_4M.fd
#   $GUESTWIRE_CACHE/autoconf/vmlinuz
#   $GUESTWIRE_CACHE/libvirt/usr/sbin/libvirtd
#   $GUESTWIRE_CACHE/qemu/usr/bin/qemu-system-x86_64
#
# Needs Debian 12, Go and root. If everything is installed, the script changes nothing. It starts no service.
set -eu

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
packages="libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients libxml2-utils passt"

# gokrazy's Linux 7.1 with x86's default configuration: a Go module that contains the image.
kernel=github.com/gokrazy/kernel.amd64@v0.0.0-20260705070735-de680abf072b
kernel_sha256=276e5c6eefee7d955d3b6808d214b535561ce426789e3b4f53bd899474612525

"$(dirname "$0")/../stockkernel/install.sh"

installed() {
	# shellcheck disable=SC2086 # a list of words
	test "$(dpkg-query -W -f '${db:Status-Status}\n' $packages 2>/dev/null | grep -cx installed)" -eq "$(echo "$packages" | wc -w)"
}

# is_kernel FILE succeeds if the file is the kernel.
is_kernel() {
	echo "$kernel_sha256  $1" | sha256sum --check --status 2>/dev/null
}

# The lock makes a second run wait for the first one.
exec 9>"$cache/lock"
flock 9

# backported succeeds if the packages of Debian's backports are in the cache.
backported() {
	test -x "$cache/libvirt/usr/sbin/libvirtd" && test -x "$cache/qemu/usr/bin/qemu-system-x86_64"
}

# unpacked succeeds if the packages that are only unpacked are in the cache.
unpacked() {
	test -x "$cache/dhclient/sbin/dhclient" && backported &&
		test -x "$cache/managers/lib/systemd/systemd-networkd" && test -x "$cache/managers/usr/sbin/NetworkManager" &&
		test -x "$cache/cloudinit/usr/bin/python3.11" && test -e "$cache/firmware/usr/share/OVMF/OVMF_CODE_4M.fd"
}

if installed && unpacked && is_kernel "$cache/autoconf/vmlinuz"; then
	exit 0
fi

temp=$(mktemp -d)
policy=/usr/sbin/policy-rc.d
made_policy=
clean() {
	rm -rf "$temp" "$cache/dhclient.new" "$cache/managers.new" "$cache/cloudinit.new" "$cache/firmware.new" "$cache/autoconf.new" "$cache/libvirt.new" "$cache/qemu.new"
	if test -n "$made_policy"; then
		rm -f "$policy"
	fi
}
trap clean EXIT
trap 'exit 1' HUP INT TERM

# quiet runs a command and prints its output only if the command fails.
quiet() {
	if ! "$@" >"$temp/log" 2>&1; then
		cat "$temp/log" >&2
		echo "$0: $*: ended badly" >&2
		exit 1
	fi
}

if ! is_kernel "$cache/autoconf/vmlinuz"; then
	# Where there is no go.sum to write to.
	(cd "$temp" && go mod download -json "$kernel" >module) || { cat "$temp/module" >&2; exit 1; }
	image=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' "$temp/module")/vmlinuz
	is_kernel "$image" || { echo "$0: $image is not the kernel that was chosen" >&2; exit 1; }
	rm -rf "$cache/autoconf" "$cache/autoconf.new"
	# A libvirt or QEMU of another user reads it.
	install -D -m 644 "$image" "$cache/autoconf.new/vmlinuz"
	mv "$cache/autoconf.new" "$cache/autoconf"
fi
if installed && unpacked; then
	exit 0
fi

export DEBIAN_FRONTEND=noninteractive
quiet apt-get -q -o DPkg::Lock::Timeout=300 update

if ! installed; then
	# invoke-rc.d(8) asks this file whether it may start a service.
	if ! test -e "$policy"; then
		made_policy=yes
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	# shellcheck disable=SC2086 # a list of words
	quiet apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages
fi

if ! test -x "$cache/dhclient/sbin/dhclient"; then
	cd "$temp"
	quiet apt-get -q -o APT::Sandbox::User=root download isc-dhcp-client
	rm -rf "$cache/dhclient" "$cache/dhclient.new"
	quiet dpkg -x "$temp"/isc-dhcp-client_*.deb "$cache/dhclient.new"
	mv "$cache/dhclient.new" "$cache/dhclient"
fi

if ! test -x "$cache/managers/lib/systemd/systemd-networkd" || ! test -x "$cache/managers/usr/sbin/NetworkManager"; then
	mkdir "$temp/managers"
	cd "$temp/managers"
	# With the libraries that NetworkManager is linked with and that libvirt does not bring.
	quiet apt-get -q -o APT::Sandbox::User=root download systemd libsystemd-shared dbus-daemon network-manager \
		libbluetooth3 libjansson4 libmm-glib0 libndp0 libnewt0.52 libnm0 libpsl5 libreadline8 libslang2 libteamdctl0
	rm -rf "$cache/managers" "$cache/managers.new"
	for package in *.deb; do
		quiet dpkg -x "$package" "$cache/managers.new"
	done
	chmod 755 "$cache/managers.new"
	mv "$cache/managers.new" "$cache/managers"
fi

if ! test -x "$cache/cloudinit/usr/bin/python3.11"; then
	mkdir "$temp/cloudinit"
	cd "$temp/cloudinit"
	quiet apt-get -q -o APT::Sandbox::User=root download cloud-init netplan.io libnetplan0 libglib2.0-0 genisoimage \
		python3.11-minimal libpython3.11-minimal libpython3.11-stdlib python3-attr python3-certifi python3-chardet \
		python3-charset-normalizer python3-configobj python3-idna python3-jinja2 python3-json-pointer python3-jsonpatch \
		python3-jsonschema python3-markupsafe python3-netifaces python3-oauthlib python3-pyrsistent python3-requests \
		python3-serial python3-six python3-urllib3 python3-yaml libyaml-0-2
	rm -rf "$cache/cloudinit" "$cache/cloudinit.new"
	for package in *.deb; do
		quiet dpkg -x "$package" "$cache/cloudinit.new"
	done
	# Compiled modules alone, as an emulated guest would compile for most of a minute. Modules that need further libraries
	# go.
	cd "$cache/cloudinit.new/usr/lib"
	rm -rf python3.11/lib2to3 python3.11/pydoc_data python3.11/ensurepip python3.11/idlelib python3.11/test
	for module in _curses _curses_panel _dbm _sqlite3 nis readline; do
		rm -f python3.11/lib-dynload/$module.*
	done
	PYTHONHOME="$cache/cloudinit.new/usr" quiet "$cache/cloudinit.new/usr/bin/python3.11" -I -m compileall -q -b --invalidation-mode unchecked-hash python3.11 python3
	find python3.11 python3 -name '*.py' -delete
	chmod 755 "$cache/cloudinit.new"
	mv "$cache/cloudinit.new" "$cache/cloudinit"
fi

if ! test -e "$cache/firmware/usr/share/OVMF/OVMF_CODE_4M.fd"; then
	mkdir "$temp/firmware"
	cd "$temp/firmware"
	quiet apt-get -q -o APT::Sandbox::User=root download ovmf grub-efi-amd64-bin
	rm -rf "$cache/firmware" "$cache/firmware.new"
	for package in *.deb; do
		quiet dpkg -x "$package" "$cache/firmware.new"
	done
	chmod 755 "$cache/firmware.new"
	mv "$cache/firmware.new" "$cache/firmware"
fi

# backport NAME PACKAGE... unpacks the packages.
backport() {
	name=$1
	shift
	mkdir "$temp/$name"
	cd "$temp/$name"
	# shellcheck disable=SC2086 # a list of words
	quiet apt-get -q $backports -t bookworm-backports download "$@"
	rm -rf "${cache:?}/$name" "$cache/$name.new"
	for package in *.deb; do
		quiet dpkg -x "$package" "$cache/$name.new"
	done
	chmod 755 "$cache/$name.new"
	mv "$cache/$name.new" "$cache/$name"
}

if ! backported; then
	mkdir -p "$temp/backports/lists/partial"
	cd "$temp/backports"
	# From where the machine has Debian itself.
	apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) bookworm-backports main' \
		'Codename: bookworm' 'Component: main' 'Created-By: Packages' | head -n 1 >sources
	backports="-o APT::Sandbox::User=root -o Dir::Etc::SourceList=$PWD/sources -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$PWD/lists"
	# shellcheck disable=SC2086 # lists of words
	quiet apt-get -q $backports update
	test -x "$cache/libvirt/usr/sbin/libvirtd" || backport libvirt libvirt0 libvirt-daemon libvirt-daemon-driver-qemu
	test -x "$cache/qemu/usr/bin/qemu-system-x86_64" || backport qemu qemu-system-x86 qemu-system-data
fi
