#!/usr/bin/env bash
# other_system.sh SUITE [COMPILER]: builds this tree in a fresh installation of a Debian suite, with the packages from .ci/install-deps, and
# runs the tests that need no device. COMPILER: g++ (default) or clang++. Needs root; slow, and not part of run.sh. Results are in
# docs/reference/compatibility.md.
set -euo pipefail
suite=$1 compiler=${2:-g++}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
place=$(mktemp -d)
root=$place/root
cleanup() {
    for mounted in proc dev/pts dev; do umount "$root/$mounted" 2>/dev/null || true; done
    # Never delete through a mount.
    rm -rf --one-file-system "$place"
}
trap cleanup EXIT
"$source/test/package/root.sh" "$root" "$suite"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"
mount -t proc proc "$root/proc"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
mkdir "$root/root/rcverbs"
git -C "$source" archive HEAD | tar -C "$root/root/rcverbs" -x
inside /root/rcverbs/.ci/install-deps
inside cmake -S /root/rcverbs -B /root/build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_CXX_COMPILER="$compiler" \
    -DRCVERBS_WERROR=ON
inside cmake --build /root/build -- -k 0
inside ctest --test-dir /root/build -LE 'device|hosts|vm|distribution|docs' --output-on-failure --no-tests=error -j 2
