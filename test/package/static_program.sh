#!/usr/bin/env bash
# static_program.sh BUILD: a program that is linked fully statically connects in the virtual machine, with the providers in it.
set -euo pipefail
build=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cmake --install "$build" --prefix "$place/prefix" >"$place/log" || { cat "$place/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$place/prefix" -name rcverbs.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # flags
g++ -std=c++20 -Wno-mismatched-new-delete -static $(pkg-config --cflags rcverbs) "$here/../../docs/examples/first.cpp" "$here/../../docs/examples/static_providers.cpp" -o "$place/first" \
    $(pkg-config --static --libs rcverbs) 2>"$place/log" || { cat "$place/log"; exit 1; }
"$here/../softroce/vm" -- bash -c '"$1/bin/docs_callback_server" & sleep 1; "$0" 10.0.0.1' "$place/first" "$build"
