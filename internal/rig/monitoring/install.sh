#!/bin/bash
# Unpacks promtool, which the test of the alerts calls, and installs nothing:
#
#   $GUESTWIRE_CACHE/prometheus/usr/bin/promtool     the cache is /var/cache/guestwire by default
#
# Needs Debian 12 and root. When it is there, this changes nothing and takes no time.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

ready() { [ -x "$cache/prometheus/usr/bin/promtool" ]; }

# A second run waits for the first one.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
ready && exit

tmp=$(mktemp -d "$cache/prometheus.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
apt update
# apt's sandbox user has to write to the directory of the download.
(cd "$tmp" && apt -o APT::Sandbox::User=root download prometheus)
dpkg -x "$tmp"/prometheus_*.deb "$tmp/root"
chmod 755 "$tmp/root"
rm -rf "${cache:?}/prometheus"
mv "$tmp/root" "$cache/prometheus"
ready || { echo "install: promtool is missing in $cache" >&2; exit 1; }
