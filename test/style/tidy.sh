#!/usr/bin/env bash
# tidy.sh BUILD: checks that clang-tidy 14, with .clang-tidy, finds nothing in the libraries. BUILD has a compile_commands.json.
set -uo pipefail
build=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for program in clang-tidy-14 clang-tidy; do
    if "$program" --version 2>/dev/null | grep -q 'version 14\.'; then found=$program; break; fi
done
if [ -z "${found:-}" ]; then
    echo "skipped: there is no clang-tidy 14"
    exit 0
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
# Removes options that only g++ has.
sed -E 's/ --param=ggc-[^ ]+//; s/ -Wno-mismatched-new-delete//' "$build/compile_commands.json" >"$place/compile_commands.json"
printf '%s\0' lib/src/*/*.cpp lib/nvme/src/*.cpp | xargs -0 -P "$(nproc)" -n 4 "$found" -p "$place" --quiet 2>"$place/log" && echo "clang-tidy finds nothing" || {
    grep -vE '^[0-9]+ warnings? generated|^$' "$place/log"
    exit 1
}
