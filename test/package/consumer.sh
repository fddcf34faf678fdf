#!/usr/bin/env bash
# consumer.sh BUILD TYPE: installs a build into an empty prefix, and builds and tests a program against it.
set -euo pipefail
build=$(realpath "$1") type=${2:-Release}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
# The compiler cache takes paths as relative to the current folder.
cd "$place"

cmake --install "$build" --prefix "$place/prefix" >"$place/log" || { cat "$place/log"; exit 1; }
# Every public header is there.
for tree in lib lib/nvme lib/nvme/nbd lib/nvme/rbd lib/fabric; do
    if [ $tree = lib/nvme ] && ! [ -d "$place/prefix/include/rcverbs/nvme" ]; then continue; fi  # not built
    if [ $tree = lib/nvme/nbd ] && ! pkg-config --exists libnbd; then continue; fi
    if [ $tree = lib/nvme/rbd ] && ! [ -e /usr/include/rbd/librbd.h ]; then continue; fi
    (cd "$here/../../$tree/include" && find . -name '*.hpp') | while read -r header; do
        [ -f "$place/prefix/include/$header" ] || echo "$tree: $header is not installed"
    done
done >"$place/missing"
if [ -s "$place/missing" ]; then cat "$place/missing"; exit 1; fi
mkdir "$place/consumer"
cp "$here/consumer/CMakeLists.txt" "$here"/../../docs/examples/*.cpp "$place/consumer"
# A compiler cache helps only without the paths of this run, and with headers that were installed just now.
export CCACHE_BASEDIR=$place CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=include_file_mtime,include_file_ctime
launcher=$(command -v ccache || true)
cmake -S "$place/consumer" -B "$place/build" -G Ninja -DCMAKE_BUILD_TYPE="$type" -DCMAKE_PREFIX_PATH="$place/prefix" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"
cmake --build "$place/build"
ctest --test-dir "$place/build" --output-on-failure --no-tests=error
# The same without CMake.
pc=$(dirname "$(find "$place/prefix" -name rcverbs.pc)")
# by_pkg_config PROGRAM PACKAGE...
by_pkg_config() {
    local program=$1
    shift
    # shellcheck disable=SC2046 # flags
    $launcher g++ -std=c++20 $(PKG_CONFIG_PATH=$pc pkg-config --cflags "$@") -c "$place/consumer/$program.cpp" -o "$place/$program.o"
    # shellcheck disable=SC2046 # flags
    g++ "$place/$program.o" -o "$place/$program" $(PKG_CONFIG_PATH=$pc pkg-config --libs "$@")
}
by_pkg_config first rcverbs
by_pkg_config without_rdma rcverbs-fabric rcverbs
"$place/without_rdma"

# A program that was compiled with another Boost than the library is not linked.
boost=$(nm "$place/first.o" | sed -nE 's/^ +U (rcverbs_boost_[0-9]+)$/\1/p')
[ -n "$boost" ] || { echo "a program does not name its Boost"; exit 1; }
objcopy --redefine-sym "$boost=rcverbs_boost_999999" "$place/first.o" "$place/other.o"
# shellcheck disable=SC2046 # flags
if g++ "$place/other.o" -o "$place/other" $(PKG_CONFIG_PATH=$pc pkg-config --libs rcverbs) 2>"$place/log"; then
    echo "a program with another Boost was linked"
    exit 1
fi
grep -q rcverbs_boost_999999 "$place/log" || { cat "$place/log"; exit 1; }
# Nor one with other settings of Asio.
printf '#include <rcverbs/error.hpp>\nint main() { return rcverbs::error_code{}.failed(); }\n' >"$place/settings.cpp"
# with_setting NAME FLAG...
with_setting() {
    local name=$1
    shift
    # shellcheck disable=SC2046 # flags
    $launcher g++ -std=c++20 "$@" $(PKG_CONFIG_PATH=$pc pkg-config --cflags rcverbs) -c "$place/settings.cpp" -o "$place/settings.o"
    # shellcheck disable=SC2046 # flags
    if g++ "$place/settings.o" -o "$place/settings" $(PKG_CONFIG_PATH=$pc pkg-config --libs rcverbs) 2>"$place/log"; then
        [ "$name" = same ] && return
        echo "a program with $* was linked"
        exit 1
    fi
    grep -q "rcverbs_boost_[0-9]*_$name'" "$place/log" || { cat "$place/log"; exit 1; }
}
with_setting same
with_setting no_typeid -fno-rtti
with_setting no_typeid -DBOOST_ASIO_NO_TYPEID
with_setting handler_tracking -DBOOST_ASIO_ENABLE_HANDLER_TRACKING
with_setting io_uring -DBOOST_ASIO_HAS_IO_URING
with_setting no_epoll -DBOOST_ASIO_DISABLE_EPOLL
with_setting no_threads -DBOOST_ASIO_DISABLE_THREADS

# A program that is linked fully statically has the drivers of devices only if it asks for them, and otherwise says so where it finds none.
(
    export PKG_CONFIG_PATH=$pc
    # shellcheck disable=SC2046 # flags
    $launcher g++ -std=c++20 $(pkg-config --cflags rcverbs) -c "$place/consumer/static_providers.cpp" -o "$place/providers.o"
    # shellcheck disable=SC2046 # flags
    g++ -static "$place/first.o" -o "$place/first-static" $(pkg-config --static --libs rcverbs) 2>"$place/log" || { cat "$place/log"; exit 1; }
    # shellcheck disable=SC2046 # flags
    g++ -static "$place/first.o" "$place/providers.o" -o "$place/first-static-providers" $(pkg-config --static --libs rcverbs) 2>"$place/log" || { cat "$place/log"; exit 1; }
)
if [ ! -e /dev/infiniband/rdma_cm ]; then
    "$place/first-static" 127.0.0.1 >"$place/log" 2>&1 && exit 1
    grep -q 'static_providers.hpp' "$place/log" || { cat "$place/log"; exit 1; }
    "$place/first-static-providers" 127.0.0.1 >"$place/log" 2>&1 && exit 1
    grep -q 'no RDMA device that this program can use' "$place/log" || { cat "$place/log"; exit 1; }
fi

# Components that are there are found, and others are missed with the reason.
mkdir "$place/components"
cat >"$place/components/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(components LANGUAGES CXX)
find_package(rcverbs 0.1 REQUIRED COMPONENTS ${WANTED})
CMAKE
cmake -S "$place/components" -B "$place/components-build" -DCMAKE_PREFIX_PATH="$place/prefix" '-DWANTED=nvme;fabric' >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
if cmake -S "$place/components" -B "$place/components-missing" -DCMAKE_PREFIX_PATH="$place/prefix" -DWANTED=teapot >"$place/log" 2>&1; then
    echo "a component that does not exist was found"
    exit 1
fi
grep -q 'has no component teapot' "$place/log" || { cat "$place/log"; exit 1; }

# store STORE PLACE TEXT: a program with a store on a server that is not there, which says so.
store() {
    [ -f "$place/prefix/include/rcverbs/nvme/$1_store.hpp" ] || return 0
    mkdir "$place/$1"
    cat >"$place/$1/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES CXX)
find_package(rcverbs 0.1 REQUIRED COMPONENTS nvme nvme_$1)
add_executable(program program.cpp)
target_link_libraries(program PRIVATE rcverbs::nvme_$1)
CMAKE
    cat >"$place/$1/program.cpp" <<CPP
#include <rcverbs/nvme/$1_store.hpp>

#include <boost/asio/io_context.hpp>
#include <iostream>

int main() {
    boost::asio::io_context io;
    try {
        rcverbs::nvme::$1_store const store{io.get_executor(), "$2"};
    } catch (boost::system::system_error const& e) {
        std::cout << e.what() << '\n';
    }
}
CPP
    cmake -S "$place/$1" -B "$place/$1-build" -G Ninja -DCMAKE_BUILD_TYPE="$type" -DCMAKE_PREFIX_PATH="$place/prefix" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" >"$place/log" 2>&1 &&
        cmake --build "$place/$1-build" >>"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
    CEPH_CONF=/nowhere "$place/$1-build/program" | grep "$3" || { echo "the program with a disk of $1"; exit 1; }
}
store nbd 'nbd+unix:///?socket=/nowhere' 'No such file'
store rbd rbd/disk "/etc/ceph/ceph.conf): No such file"

# A project that has this one as a part, twice, exports its own build tree, and has absolute folders.
mkdir "$place/part"
cat >"$place/part/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(mine LANGUAGES CXX)
add_subdirectory(${RCVERBS_SOURCE} rcverbs)
add_subdirectory(${RCVERBS_SOURCE} rcverbs-again)
file(WRITE ${CMAKE_BINARY_DIR}/mine.cpp "#include <rcverbs/rcverbs.hpp>\n")
add_library(mine STATIC ${CMAKE_BINARY_DIR}/mine.cpp)
target_link_libraries(mine PUBLIC rcverbs::rcverbs)
export(TARGETS mine NAMESPACE mine:: FILE mine-build.cmake)
CMAKE
cmake -S "$place/part" -B "$place/part-build" -DRCVERBS_SOURCE="$here/../.." -DCMAKE_INSTALL_LIBDIR=/opt/lib -DCMAKE_INSTALL_INCLUDEDIR=/opt/include >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
for wanted in libdir=/opt/lib includedir=/opt/include; do
    grep -qx "$wanted" "$place/part-build/rcverbs/lib/rcverbs.pc" || { cat "$place/part-build/rcverbs/lib/rcverbs.pc"; exit 1; }
done

# A project for which the library is optional must configure even if the library's dependencies are missing.
mkdir "$place/optional" "$place/without"
cat >"$place/optional/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(optional LANGUAGES CXX)
find_package(rcverbs QUIET)
if(rcverbs_FOUND)
    message(FATAL_ERROR "found without libibverbs")
endif()
message(STATUS "goes on without rcverbs")
CMAKE
for file in $(pkg-config --list-all | awk '$1 != "libibverbs" && $1 != "librdmacm" { print $1 }'); do
    ln -s "$(pkg-config --variable=pcfiledir "$file")/$file.pc" "$place/without/" 2>/dev/null || true
done
PKG_CONFIG_LIBDIR=$place/without cmake -S "$place/optional" -B "$place/optional-build" -DCMAKE_PREFIX_PATH="$place/prefix" | tee "$place/log" >/dev/null
grep -q "goes on without rcverbs" "$place/log" || { cat "$place/log"; exit 1; }

# What only the component nvme needs may be missing where nobody asks for it.
rm "$place/without"/*
for file in $(pkg-config --list-all | awk '$1 != "liburing" { print $1 }'); do
    ln -s "$(pkg-config --variable=pcfiledir "$file")/$file.pc" "$place/without/" 2>/dev/null || true
done
# without_nvme WANTED PLACE ARGUMENT…: configures a program where liburing is missing.
without_nvme() {
    PKG_CONFIG_LIBDIR=$place/without cmake -S "$place/components" -B "$place/$2" -DCMAKE_PREFIX_PATH="$place/prefix" "-DWANTED=$1" "${@:3}" >"$place/log" 2>&1
}
without_nvme fabric components-fabric || { cat "$place/log"; exit 1; }
if grep -q 'rcverbs::nvme STATIC' "$(find "$place/prefix" -name rcverbs-nvme-targets.cmake)"; then
    without_nvme nvme components-nvme && { echo "a static component nvme was found without what it needs"; exit 1; }
    grep -q 'for the component nvme: ' "$place/log" || { cat "$place/log"; exit 1; }
    # The library itself needs OpenSSL where it is linked statically.
    without_nvme fabric components-openssl -DOPENSSL_INCLUDE_DIR=/nonexistent -DOPENSSL_CRYPTO_LIBRARY=OPENSSL_CRYPTO_LIBRARY-NOTFOUND &&
        { echo "a static library was found without OpenSSL"; exit 1; }
    grep -q 'OpenSSL 3.0 is missing' "$place/log" || { cat "$place/log"; exit 1; }
fi

# An incomplete build installs nothing, and prints what to do.
cmake -S "$here/../.." -B "$place/partial" -G Ninja -DRCVERBS_BUILD_TESTS=OFF >/dev/null
if cmake --install "$place/partial" --prefix "$place/empty" >"$place/log" 2>&1 || [ -e "$place/empty" ]; then
    echo "a build without anything in it was installed"
    exit 1
fi
grep -q "cmake --build" "$place/log" || { cat "$place/log"; exit 1; }

# The package must not refer to the source tree.
if grep -rn "$(cd "$here/../.." && pwd)" "$place/prefix" --include='*.cmake' --include='*.pc'; then
    echo "the package names the tree that it was built in"
    exit 1
fi
