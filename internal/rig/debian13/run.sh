#!/bin/bash
# run.sh COMMAND... runs a command as root of Debian 13, in the working directory of the caller, such as
#
#   internal/rig/debian13/run.sh go test ./phase2
#
# The kernel, the network and the processes are this machine's. So are this tree, Go with what it keeps, and
# GUESTWIRE_CACHE, where the command finds them. All else is the root that install.sh has made: what the command changes
# there ends with it. /run, /dev and all mounts are its own.
set -euo pipefail

tree=$(realpath "$(dirname "$0")/../../..")
cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
# Of a second work tree the repository lies elsewhere; go writes its revision into programs.
repository=$(git -C "$tree" rev-parse --path-format=absolute --git-common-dir 2>/dev/null || echo "$tree")
[ -x "$cache/trixie/usr/bin/apt" ] || { echo "run.sh: no root in $cache/trixie: internal/rig/debian13/install.sh makes it" >&2; exit 1; }
mkdir -p "$(go env GOMODCACHE)" "$(go env GOCACHE)"
export GOROOT GOMODCACHE GOCACHE GOTOOLCHAIN=local CGO_ENABLED=0
GOROOT=$(go env GOROOT) GOMODCACHE=$(go env GOMODCACHE) GOCACHE=$(go env GOCACHE)

# A tmpfs beside the cache has what is written. A chroot would not do: in one, no user namespace can be made.
exec unshare --mount --propagation private bash -c '
set -e
cache=$1 tree=$2 repository=$3 directory=$4
shift 4
mount -t tmpfs -o mode=755 debian13 /mnt
mkdir /mnt/{upper,work,root}
chmod 755 /mnt/upper
mount -t overlay -o "lowerdir=$cache/trixie,upperdir=/mnt/upper,workdir=/mnt/work" debian13 /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 run run
mkdir -m 1777 run/lock
mount -t tmpfs -o mode=1777 tmp tmp
# After /tmp and /run, as they may lie there.
for kept in "$tree" "$repository" "$GOROOT" "$GOMODCACHE" "$GOCACHE" "$cache"; do
	mkdir -p ".$kept"
	mount --bind "$kept" ".$kept"
done
cp --dereference /etc/resolv.conf etc/resolv.conf
mount --bind /etc/ssl/certs etc/ssl/certs # what a network requires whose proxy has a certificate of its own
pivot_root . mnt
umount --lazy mnt
cd "$directory"
exec env --unset=TMPDIR HOME=/root PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$GOROOT/bin" "$@"
' run.sh "$cache" "$tree" "$repository" "$PWD" "$@"
