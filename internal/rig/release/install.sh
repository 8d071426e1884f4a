#!/bin/bash
# Installs what the tests of a release call: mmdebstrap, which makes a Debian root, qemu-user for programs of arm64, and rpm.
# Needs Debian and root. When all is there it changes nothing.
set -euo pipefail

ready() { type mmdebstrap qemu-aarch64-static rpm >/dev/null 2>&1; } # of each program
ready && exit
apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }
apt update
apt install --no-install-recommends mmdebstrap qemu-user-static rpm
ready
