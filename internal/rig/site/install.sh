#!/bin/bash
# Installs node and npm, which build the site, unless the machine has them. Needs Debian 12 and root.
set -euo pipefail

command -v node npm >/dev/null && exit
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=300 update >&2
apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends nodejs npm >&2
