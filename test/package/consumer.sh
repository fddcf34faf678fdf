#!/usr/bin/env bash
# consumer.sh BUILD TYPE: installs a build into an empty prefix, and builds and tests a program against that alone.
set -euo pipefail
build=$1 type=${2:-Release}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

cmake --install "$build" --prefix "$place/prefix" >"$place/log" || { cat "$place/log"; exit 1; }
mkdir "$place/consumer"
cp "$here/consumer/CMakeLists.txt" "$here"/../../docs/examples/*.cpp "$place/consumer"
cmake -S "$place/consumer" -B "$place/build" -G Ninja -DCMAKE_BUILD_TYPE="$type" -DCMAKE_PREFIX_PATH="$place/prefix"
cmake --build "$place/build"
ctest --test-dir "$place/build" --output-on-failure --no-tests=error
# The same without CMake.
pc=$(dirname "$(find "$place/prefix" -name rcverbs.pc)")
# shellcheck disable=SC2046 # flags
g++ -std=c++20 "$place/consumer/first.cpp" -o "$place/first" $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs rcverbs)
# Nothing of the source tree's may be needed.
if grep -rn "$(cd "$here/../.." && pwd)" "$place/prefix" --include='*.cmake' --include='*.pc'; then
    echo "the package names the tree that it was built in"
    exit 1
fi
