#!/bin/bash
# install.sh [-ready] builds Kubernetes, containerd, CRI-O and runc into one directory, which the script prints:
#
#   $GUESTWIRE_CACHE/kubernetes/KUBERNETES-CONTAINERD-CRIO-RUNC-SUM/     the cache is /var/cache/guestwire by default
#
# With -ready the exit status reports whether everything is there, and nothing is done. The first build takes six to ten
# minutes on two cores and five minutes of CPU time for CRI-O, 1.5 GB of Go modules and 3 GB of Go's build cache. Needs Debian 12, Go, gcc and root; installs nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
containerd=2.2.9 crio=1.34.0 runc=1.3.4
# The sum of CRI-O's module. It covers the module's own go.sum, by which go checks all that CRI-O imports.
crio_sum=h1:ux2URwAyENy5e5hD9Z95tshdfy98eqatZk0fxx3rhuk=
parts=$(dirname "$(realpath "$0")")/parts
kubernetes=$(sed -n 's,^\tk8s.io/kubernetes v,,p' "$parts/go.mod")
# A change of the module is another build.
sum=$(cat "$parts"/{go.mod,go.sum,main.go} | sha256sum | cut -c1-8)
dir=$cache/kubernetes/$kubernetes-$containerd-$crio-$runc-$sum

names=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
ready() {
	for program in "${names[@]}" containerd ctr containerd-shim-runc-v2 crio pinns copyimg runc; do
		[ -x "$dir/$program" ] || return
	done
}
if [ "${1-}" = -ready ]; then
	ready
	exit
fi
say() { echo "kubernetes: $*" >&2; }

# A second run waits for the first one, and no other install.sh waits for this one.
mkdir -p "$cache/kubernetes"
exec 9>"$cache/kubernetes/lock"
flock 9
if ready; then
	echo "$dir"
	exit
fi

tmp=$(mktemp -d "$cache/kubernetes/new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
mkdir "$tmp/bin"
export GOTOOLCHAIN=local GOFLAGS="-buildvcs=false -trimpath" GOBIN=$tmp/bin GOWORK=off

# Linked statically; go's cache minds the directory in CGO_*FLAGS, but not what pkg-config says.
say "building runc $runc (1 of 4)"
apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }
apt update
# apt's sandbox user has to write to the directory of the download.
(cd "$tmp" && apt -o APT::Sandbox::User=root download libseccomp-dev)
dpkg -x "$tmp"/libseccomp-dev_*.deb "$tmp/debian"
rm -f "$tmp"/debian/usr/lib/x86_64-linux-gnu/libseccomp.so*
printf '#!/bin/sh\ncase $* in\n*--libs*) echo -lseccomp ;;\nesac\n' >"$tmp/pkg-config"
chmod 755 "$tmp/pkg-config"
(cd / && CGO_ENABLED=1 PKG_CONFIG=$tmp/pkg-config CGO_CFLAGS="-O2 -I$tmp/debian/usr/include" CGO_LDFLAGS="-L$tmp/debian/usr/lib/x86_64-linux-gnu" \
	go install -tags seccomp -ldflags "-s -w -X main.version=$runc" "github.com/opencontainers/runc@v$runc")

# CRI-O is built in a copy of its module, with its go.sum: sum.golang.org does not know all modules that it imports.
# copyimg, of its tests, imports images. The tags leave out what needs the headers of libraries.
say "building CRI-O $crio, five minutes or less (2 of 4)"
(cd / && go mod download -json "github.com/cri-o/cri-o@v$crio") >"$tmp/crio.json"
grep -qF "\"Sum\": \"$crio_sum\"" "$tmp/crio.json" || { say "CRI-O $crio has another sum: $(<"$tmp/crio.json")"; exit 1; }
cp -r "$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' "$tmp/crio.json")" "$tmp/crio"
chmod -R u+w "$tmp/crio"
gcc -std=c99 -Os -static -s -o "$tmp/bin/pinns" "$tmp"/crio/pinns/src/*.c
CGO_ENABLED=1 go -C "$tmp/crio" install -ldflags "-s -w" \
	-tags containers_image_ostree_stub,containers_image_openpgp,exclude_graphdriver_btrfs,btrfs_noversion,exclude_graphdriver_devicemapper ./cmd/crio ./test/copyimg

export CGO_ENABLED=0
say "building containerd $containerd, two minutes or less (3 of 4)"
for program in containerd ctr containerd-shim-runc-v2; do
	(cd / && go install -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd" "github.com/containerd/containerd/v2/cmd/$program@v$containerd")
done

say "building Kubernetes $kubernetes, seven minutes or less (4 of 4)"
minor=${kubernetes#*.}
version=k8s.io/component-base/version
go -C "$parts" build -ldflags "-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=${kubernetes%%.*} -X $version.gitMinor=${minor%%.*}" -o "$tmp/bin/kubernetes" .
for name in "${names[@]}"; do
	ln -s kubernetes "$tmp/bin/$name"
done

rm -rf "$dir"
mv "$tmp/bin" "$dir"
ready || { say "files are missing in $dir"; exit 1; }
echo "$dir"
