#!/usr/bin/env bash
# root.sh FOLDER [SUITE]: unpacks a minimal installation of a Debian suite (default: this machine's) into FOLDER, from the mirror that this
# machine uses. debootstrap makes it once; it is cached in ~/.cache/rcverbs. Needs root.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
folder=$1
suite=${2:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
mirror=$(apt-get indextargets --format '$(SITE)' | head -n 1)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/rcverbs/root-$suite.tar

if [ ! -e "$kept" ]; then
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    # debootstrap's script for sid works for suites that have none.
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
# Like Debian's images: dpkg need not sync each file to disk.
echo force-unsafe-io >"$folder/etc/dpkg/dpkg.cfg.d/unsafe-io"
