#!/bin/bash
# Installs node and npm, which build the site, unless the machine has them. Needs Debian 12 and root.
set -euo pipefail

type node npm >/dev/null 2>&1 && exit # has each of them
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=300 update >&2
apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends nodejs npm >&2
