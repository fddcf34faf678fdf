#!/usr/bin/env bash
# format.sh: checks that clang-format 14 with .clang-format leaves the sources unchanged. Other versions differ in details.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for program in clang-format-14 clang-format; do
    if "$program" --version 2>/dev/null | grep -q 'version 14\.'; then found=$program; break; fi
done
if [ -z "${found:-}" ]; then
    echo "skipped: there is no clang-format 14"
    exit 0
fi
find lib apps test docs \( -name '*.cpp' -o -name '*.hpp' \) -print0 | xargs -0 "$found" --dry-run -Werror || {
    echo "mend it with: find lib apps test docs -name '*.[ch]pp' | xargs $found -i"
    exit 1
}
