#!/usr/bin/env bash
# units.sh BUILD: the installed systemd units are what this machine's systemd accepts, start the installed programs, and give a program
# that listens to a network few rights; the users that they run as are made.
set -euo pipefail
build=$1
if ! command -v systemd-analyze >/dev/null || ! command -v systemd-sysusers >/dev/null; then
    echo "skipped: there is no systemd"
    exit 0
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
wrong=0
complain() {
    echo "$*"
    wrong=1
}

DESTDIR=$place/root cmake --install "$build" --component tools >"$place/log" || { cat "$place/log"; exit 1; }
folder=$(dirname "$(find "$place/root" -name 'rdma-copy@.service')")
programs=$(dirname "$(find "$place/root" -name rdma-copy -perm -1 -type f)")
mkdir "$place/units"
for unit in "$folder"/*.service; do
    name=$(basename "${unit/@./@srv-files.}")
    # The programs are below $place here.
    sed "s|^ExecStart=${programs#"$place/root"}/|ExecStart=$programs/|" "$unit" >"$place/units/$name"
    grep -q "^ExecStart=$programs/" "$place/units/$name" || complain "$name starts another program than the installed one"
    said=$(systemd-analyze verify --man=no "$place/units/$name" 2>&1) || complain "verify $name: failed"
    if grep "$name" <<<"$said"; then complain "verify $name: see above"; fi
    # Of 100; a service with no hardening at all has 96.
    systemd-analyze security --no-pager --offline=yes --threshold=25 "$place/units/$name" >"$place/log" || { cat "$place/log"; complain "$name has too many rights"; }
done

mkdir -p "$place/users/etc" "$place/users/usr/lib/sysusers.d"
cp "$folder/../../sysusers.d/rcverbs.conf" "$place/users/usr/lib/sysusers.d/"
systemd-sysusers --root="$place/users" 2>"$place/log" || { cat "$place/log"; complain "systemd-sysusers failed"; }
for unit in "$place"/units/*; do
    user=$(sed -n 's/^User=//p' "$unit")
    grep -q "^$user:" "$place/users/etc/passwd" || complain "$(basename "$unit") runs as $user, who is not there"
done
exit $wrong
