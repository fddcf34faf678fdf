#!/usr/bin/env bash
# other_processor.sh ARCHITECTURE: cross-compiles this tree in a fresh installation of Debian 12 for another processor (arm64, s390x: the
# other byte order), and runs the tests without a device under qemu-user. Emulation on x86 shows nothing about memory orders
# (test/memory_order does). Needs root; slow, and not part of run.sh. Results are in docs/reference/compatibility.md.
set -euo pipefail
architecture=$1
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case $architecture in
arm64) machine=aarch64 ;;
*) machine=$architecture ;;
esac
place=$(mktemp -d)
root=$place/root
# shellcheck disable=SC2317 # called by the trap
cleanup() {
    for mounted in proc dev; do umount "$root/$mounted" 2>/dev/null || true; done
    # Never delete through a mount.
    rm -rf --one-file-system "$place"
}
trap cleanup EXIT
"$source/test/package/root.sh" "$root" bookworm
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
inside() {
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
        PKG_CONFIG_LIBDIR="/usr/lib/$machine-linux-gnu/pkgconfig:/usr/share/pkgconfig" "$@"
}
inside dpkg --add-architecture "$architecture"
inside apt-get -q update
foreign=()
for package in libboost1.81-dev libibverbs-dev librdmacm-dev libssl-dev liburing-dev libnvme-dev libxxhash-dev libbenchmark-dev; do
    foreign+=("$package:$architecture")
done
inside apt-get -q -y --no-install-recommends install "g++-${machine//_/-}-linux-gnu" cmake ninja-build pkg-config python3 qemu-user-static catch2 libcli11-dev \
    nlohmann-json3-dev "${foreign[@]}"
mkdir "$root/root/rcverbs"
git -C "$source" archive HEAD | tar -C "$root/root/rcverbs" -x
inside cmake -S /root/rcverbs -B /root/build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 \
    -DRCVERBS_UNITY_BUILD='lib;apps;test' -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$machine" -DCMAKE_LIBRARY_ARCHITECTURE="$machine-linux-gnu" \
    -DCMAKE_C_COMPILER="$machine-linux-gnu-gcc" -DCMAKE_CXX_COMPILER="$machine-linux-gnu-g++" \
    -DCMAKE_CROSSCOMPILING_EMULATOR="/usr/bin/qemu-$machine-static"
programs=(unit_tests fabric_tests device_tests_on_fabric)
inside cmake --build /root/build --target "${programs[@]}"
status=0
for program in "${programs[@]}"; do
    # One test starts its own program again, which the kernel cannot execute.
    inside timeout 3000 "/usr/bin/qemu-$machine-static" "/root/build/bin/$program" '~[.]~the same seed gives the same run*' || status=1
done
exit $status
