#!/usr/bin/env bash
# cacheable.sh BUILD: no macro of a compile command contains the path of this clone. The compiler cache takes paths of files as relative, but
# macros as they are: a clone in another folder would compile such a file again.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
commands=$1/compile_commands.json
[ -f "$commands" ] || { echo "skipped: there is no $commands"; exit 0; }
if grep -oE -- '-D[^ ]+' "$commands" | grep -F "$PWD" | sort -u; then
    echo "these macros contain the path of this clone"
    exit 1
fi
echo "no macro contains the path of this clone"
