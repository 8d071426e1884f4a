#!/bin/bash
# install.sh [-ready] builds Kubernetes, containerd and runc into one directory, which the script prints:
#
#   $GUESTWIRE_CACHE/kubernetes/KUBERNETES-CONTAINERD-RUNC-SUM/     the cache is /var/cache/guestwire by default
#
# With -ready the exit status reports whether everything is there, and nothing is done. The first build takes six to ten
# minutes on two cores, 1.5 GB of Go modules and 3 GB of Go's build cache. Needs Debian 12, Go, gcc and root; installs nothing.
set -euo pipefail

cache=${GUESTWIRE_CACHE:-/var/cache/guestwire}
containerd=2.2.9 runc=1.3.4
parts=$(dirname "$(realpath "$0")")/parts
kubernetes=$(sed -n 's,^\tk8s.io/kubernetes v,,p' "$parts/go.mod")
# A change of the module is another build.
sum=$(cat "$parts"/{go.mod,go.sum,main.go} | sha256sum | cut -c1-8)
dir=$cache/kubernetes/$kubernetes-$containerd-$runc-$sum

names=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
ready() {
	for program in "${names[@]}" containerd ctr containerd-shim-runc-v2 runc; do
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
say "building runc $runc (1 of 3)"
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

export CGO_ENABLED=0
say "building containerd $containerd, two minutes or less (2 of 3)"
for program in containerd ctr containerd-shim-runc-v2; do
	(cd / && go install -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd" "github.com/containerd/containerd/v2/cmd/$program@v$containerd")
done

say "building Kubernetes $kubernetes, seven minutes or less (3 of 3)"
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
