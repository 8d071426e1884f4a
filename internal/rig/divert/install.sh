#!/bin/bash
# Unpacks the proxies to which the tests of this directory divert a guest's connections, and a NAT64, and installs nothing:
#
#   $GUESTWIRE_CACHE/mitmproxy/usr/bin/python3.11     with mitmproxy's modules; the cache is /var/cache/guestwire by default
#   $GUESTWIRE_CACHE/sslh/usr/sbin/sslh-select
#   $GUESTWIRE_CACHE/socat/usr/bin/socat
#   $GUESTWIRE_CACHE/tayga/usr/sbin/tayga
#
# Needs Debian 12 and root. When all is there, this changes nothing and takes no time.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

ready() {
	[ -x "$cache/mitmproxy/usr/bin/mitmdump" ] && [ -x "$cache/mitmproxy/usr/bin/python3.11" ] &&
		[ -x "$cache/sslh/usr/sbin/sslh-select" ] && [ -x "$cache/socat/usr/bin/socat" ] &&
		[ -x "$cache/tayga/usr/sbin/tayga" ]
}

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

tmp=$(mktemp -d "$cache/proxies.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
apt update
unpack() { # DIRECTORY PACKAGE...
	mkdir -p "$tmp/$1/root"
	# apt's sandbox user has to write to the directory of the download.
	(cd "$tmp/$1" && apt -o APT::Sandbox::User=root download "${@:2}")
	for deb in "$tmp/$1"/*.deb; do
		dpkg -x "$deb" "$tmp/$1/root"
	done
	chmod 755 "$tmp/$1/root"
	rm -rf "${cache:?}/$1"
	mv "$tmp/$1/root" "$cache/$1"
}
# With its own Python, and the libraries of its modules.
unpack mitmproxy mitmproxy python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
	libbrotli1 libexpat1 libffi8 libprotobuf32 libsqlite3-0 libssl3 \
	python3-asgiref python3-blinker python3-brotli python3-certifi python3-cffi-backend python3-click python3-colorama \
	python3-cryptography python3-flask python3-h11 python3-h2 python3-hpack python3-hyperframe python3-itsdangerous \
	python3-jinja2 python3-kaitaistruct python3-ldap3 python3-markupsafe python3-msgpack python3-openssl python3-passlib \
	python3-pkg-resources python3-protobuf python3-publicsuffix2 python3-pyasn1 python3-pyparsing python3-pyperclip \
	python3-ruamel.yaml python3-ruamel.yaml.clib python3-sortedcontainers python3-tornado python3-typing-extensions \
	python3-urwid python3-werkzeug python3-wsproto python3-zstandard
unpack sslh sslh libconfig9 libnsl2 libpcre3 libtirpc3 libwrap0
unpack socat socat libwrap0 libnsl2 libtirpc3
unpack tayga tayga
ready || { echo "install: files are missing in $cache" >&2; exit 1; }
