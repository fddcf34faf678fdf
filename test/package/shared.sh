#!/usr/bin/env bash
# shared.sh: builds the shared library, looks at the names that it exports, loads it as a plugin of a program that is written in C and has no
# room for thread-local variables left, calls it from C and Python, and checks that the interface is the recorded one.
#
#   shared.sh            the test
#   shared.sh --record   records the interface in lib/librcverbs.abi.xz
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
fail() {
    echo "shared.sh: $*" >&2
    exit 1
}
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake --preset package -B build/shared -DRCVERBS_UNITY_BUILD=lib -DCMAKE_CXX_FLAGS_RELEASE='-O1 -g -DNDEBUG' "${launcher[@]}" >"$place/log" &&
    cmake --build build/shared --parallel "$(nproc)" --target rcverbs >>"$place/log" 2>&1 || { tail -n 40 "$place/log"; fail "the shared library does not build"; }
so=$(ls "$PWD"/build/shared/lib/librcverbs.so.0.1)

# --- the exported names ----------------------------------------------------------------------------------------------------------------

nm -DC --defined-only "$so" >"$place/names"
# Of vague linkage are templates and inline functions of the standard library and of Boost, which several libraries may have.
foreign=$(awk '$2 != "V" && $2 != "W" && $2 != "u"' "$place/names" | grep -vE ' (typeinfo|typeinfo name|vtable|guard variable) for rcverbs::| rcverbs::| rcverbs_[0-9a-z_]+$' || true)
[ -z "$foreign" ] || fail "exported besides the library's own: $foreign"
private=$(grep -E '^[0-9a-f]+ . rcverbs::(hosting|machines|verbs|cm|wire|progress)::[A-Za-z_:~]+(\(|$)' "$place/names" | grep -vE 'rcverbs::hosting::(membership|order_task|member|owned_task)' || true)
[ -z "$private" ] || fail "exported from inside: $private"
echo "names: $(wc -l <"$place/names") exported, $(grep -c ' T rcverbs::' "$place/names") functions of the library"

# --- a plugin --------------------------------------------------------------------------------------------------------------------------

g++ -std=c++20 -O1 -fPIC -shared -Ilib/include -Ibuild/shared/lib/include test/package/plugin/plugin.cpp -o "$place/plugin.so" -L"$(dirname "$so")" -lrcverbs -Wl,-rpath,"$(dirname "$so")"
gcc -O1 test/package/plugin/host.c -o "$place/host" -ldl
# Libraries that use up what the loader keeps for thread-local variables of a fixed place, 16 bytes each.
echo '__attribute__((tls_model("initial-exec"))) __thread char used[16]; char* use(void) { return used; }' >"$place/filler.c"
gcc -O1 -fPIC -shared "$place/filler.c" -o "$place/filler.so"
fillers=()
for i in {1..300}; do
    cp "$place/filler.so" "$place/filler$i.so"
    fillers+=("$place/filler$i.so")
done
"$place/host" "$place/plugin.so" "${fillers[@]}" || fail "the plugin does not work"

# --- C and Python ----------------------------------------------------------------------------------------------------------------------

gcc -std=c99 -Wall -Wextra -Wpedantic -Werror -Ilib/include -Ibuild/shared/lib/include test/package/plugin/calls.c -o "$place/calls" -L"$(dirname "$so")" -lrcverbs -Wl,-rpath,"$(dirname "$so")"
timeout 60 "$place/calls" || fail "the calls from C ended with $?"
if [ -x build/release/bin/rcverbs-fabric ] && [ -x build/release/bin/example-block_server ]; then
    printf 'sixteen bytes, and more' >"$place/disk"
    # shellcheck disable=SC2016 # of the node
    XDG_RUNTIME_DIR=$place build/release/bin/rcverbs-fabric run -q sh -c '
        build/release/bin/example-block_server "$RCVERBS_FABRIC_ADDRESS" 7480 "$1/disk" >"$1/serving" 2>&1 & server=$!
        until grep -q serving "$1/serving" || ! kill -0 $server; do sleep 0.05; done
        LD_LIBRARY_PATH=$2:$LD_LIBRARY_PATH timeout 60 /usr/bin/python3 apps/examples/block_client.py "$RCVERBS_FABRIC_ADDRESS" 7480
        status=$?
        kill $server && wait $server && exit $status' sh "$place" "$(dirname "$so")" >"$place/python" || { cat "$place/serving"; fail "Python ended with $?"; }
    [ "$(cat "$place/python")" = '23 bytes: 7369787465656e2062797465732c2061' ] || fail "Python reads something else: $(cat "$place/python")"
else
    echo 'Python: not tried, rcverbs-fabric and example-block_server are not built'
fi

# --- the interface is the recorded one ---------------------------------------------------------------------------------------------------

if ! command -v abidw >/dev/null; then
    echo "interface: not compared, abigail-tools are missing"
    exit 0
fi
# What lib/rcverbs.map calls experimental is not recorded.
sed -n '/# Experimental/,/# Frozen/s/^ *\(rcverbs::.*\)\*;$/\1/p' lib/rcverbs.map >"$place/experimental"
[ -s "$place/experimental" ] || fail "lib/rcverbs.map has no experimental names"
while read -r name; do
    symbol=7rcverbs rest=${name#rcverbs::}
    while [[ $rest == *::* ]]; do
        part=${rest%%::*}
        symbol+=${#part}$part
        rest=${rest#*::}
    done
    symbol+=${rest:+[0-9]+$rest}
    for kind in function variable; do printf '[suppress_%s]\n  symbol_name_regexp = %s\n  drop = yes\n' "$kind" "$symbol"; done
    printf '[suppress_type]\n  name_regexp = ^%s\n  drop = yes\n' "$name"
done <"$place/experimental" >"$place/suppressions"
abidw --suppressions "$place/suppressions" --no-corpus-path --no-comp-dir-path --drop-private-types --headers-dir lib/include --exported-interfaces-only --short-locs "$so" >"$place/new.abi"
if [ "${1:-}" = --record ]; then
    xz -9 <"$place/new.abi" >lib/librcverbs.abi.xz
    ls -l lib/librcverbs.abi.xz
    exit 0
fi
xz -d <lib/librcverbs.abi.xz >"$place/recorded.abi"
if grep -q "elf-symbol name='_ZN[A-Z]*7rcverbs8protocol" "$place/recorded.abi"; then fail "the recorded interface has experimental names"; fi
# New names are no change for programs that exist. Everything else is one, layouts of rcverbs/detail/ included.
abidiff --no-show-locs --no-added-syms --suppressions "$place/suppressions" "$place/recorded.abi" "$place/new.abi" >"$place/report" || {
    sed -n 1,60p "$place/report"
    fail "the interface differs from the recorded one. Within a SONAME that is an error; before a release: shared.sh --record"
}
echo "interface: as recorded"
