#!/bin/bash
# Writes the release of the commit that is checked out into a directory: programs, packages, archives, SBOMs, checksums. The same
# commit gives the same octets. What is not committed is left out.
#
#   release.sh NFPM CYCLONEDX OUT
set -euo pipefail
cd "$(dirname "$0")/../../.."
# Whatever this machine's are.
export LC_ALL=C TZ=UTC GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT=
umask 022
nfpm=$(realpath "$1") cyclonedx=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --shared . "$work/tree" # a worktree's programs would not know their commit
cd "$work/tree"

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
hash=$(git rev-parse --short=12 HEAD)
version=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || echo "v0.0.0-$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)-$hash")
MTIME=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
export SOURCE_DATE_EPOCH
# The programs are of the module in examples: its tag makes the go command note the version. The clone alone has it.
[[ $version == *-"$hash" ]] || git tag --force "examples/$version" >/dev/null
echo "guestwire $version"

programs='guestwire-agent guestwire-launcher guestwire-exporter guestwire-node guestwire'

build() { # ARCH
	for name in $programs; do
		CGO_ENABLED=0 GOOS=linux GOARCH=$1 GOFLAGS= GOWORK=off go -C examples build -buildvcs=true -trimpath -ldflags='-s -w' -o "$work/$1/bin/$name" "./$name"
	done
}

# Completions and manual pages are what the programs of this machine print.
build "$(go env GOARCH)"
texts=$work/texts
mkdir -p "$texts/bash" "$texts/zsh" "$texts/fish" "$texts/man"
for name in guestwire-agent guestwire-launcher guestwire-exporter guestwire-node; do
	program=$work/$(go env GOARCH)/bin/$name
	"$program" completion bash >"$texts/bash/$name"
	"$program" completion zsh >"$texts/zsh/_$name"
	"$program" completion fish >"$texts/fish/$name.fish"
	"$program" man | gzip -n9 >"$texts/man/$name.8.gz"
done

rm -f "$out"/guestwire* "$out/SHA256SUMS"
for ARCH in amd64 arm64; do
	echo "  $ARCH"
	build $ARCH
	export ARCH MTIME VERSION=$version BIN=$work/$ARCH/bin TEXTS=$texts
	for kind in deb rpm; do
		envsubst <internal/rig/release/nfpm.yaml >"$work/nfpm-$kind.yaml"
		"$nfpm" package --config "$work/nfpm-$kind.yaml" --packager $kind --target "$out" >/dev/null
	done
	tree=$work/archive/guestwire-$version-linux-$ARCH
	mkdir -p "$tree/examples"
	cp -r "$BIN" "$texts"/{bash,zsh,fish,man} internal/rig/release/units docs LICENSE README.md CHANGELOG.md "$tree"
	cp -r examples/kubernetes "$tree/examples"
	tar -C "$work/archive" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w \
		-cf - "$(basename "$tree")" | gzip -n9 >"$out/$(basename "$tree").tar.gz"
	for name in $programs; do
		"$cyclonedx" bin -json -noserial -notimestamp -version "$version" -output "$out/$name-$version-$ARCH.cdx.json" "$BIN/$name" 2>/dev/null
	done
done
cd "$out"
sha256sum guestwire* >SHA256SUMS
ls -l "$out"
