#!/usr/bin/env bash
# root.sh FOLDER [SUITE]: unpacks the smallest installation of a Debian suite (default: this machine's own) into FOLDER, from
# the mirror that this machine uses. It is made once by debootstrap, and kept in ~/.cache/rcverbs. Needs root.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
folder=$1
suite=${2:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
mirror=$(apt-get indextargets --format '$(SITE)' | head -n 1)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/rcverbs/root-$suite.tar

if [ ! -e "$kept" ]; then
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    # The suites differ in nothing that debootstrap does.
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
    debootstrap --variant=minbase "$suite" "$made/root" "$mirror" "$script" >"$made/log" 2>&1 || { tail -n 20 "$made/log"; exit 1; }
    mkdir -p "$(dirname "$kept")"
    tar -C "$made/root" -cf "$made/tar" .
    mv "$made/tar" "$kept"
fi
mkdir -p "$folder"
tar -C "$folder" -xf "$kept"
cp /etc/resolv.conf "$folder/etc/resolv.conf"
# As images of Debian's have it: what does not outlive a test need not reach the disk file by file.
echo force-unsafe-io >"$folder/etc/dpkg/dpkg.cfg.d/unsafe-io"
