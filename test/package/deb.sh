#!/usr/bin/env bash
# deb.sh: builds the Debian packages and the archive (or takes those in $RCVERBS_PACKAGES, if there are any), and tests them in a fresh
# installation: a program builds against them with CMake and with pkg-config and runs, the programs and their manual pages are installed,
# and removal leaves nothing.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ "$(id -u)" != 0 ]; then
    echo "skipped: a fresh installation needs root"
    exit 0
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
fail() {
    echo "deb.sh: $*" >&2
    exit 1
}
quietly() { "$@" >"$place/log" 2>&1 || { tail -n 40 "$place/log"; fail "did not succeed: $*"; }; }

cd "$source"
if [ -n "$(ls "${RCVERBS_PACKAGES:-/nowhere}"/*.deb 2>/dev/null)" ]; then
    echo "packages: those in $RCVERBS_PACKAGES"
else
    RCVERBS_PACKAGES=build/package/packages
    quietly cmake --preset package
    quietly cmake --build --preset package
    rm -rf "$RCVERBS_PACKAGES"
    quietly cpack --config build/package/CPackConfig.cmake -B "$RCVERBS_PACKAGES"
fi
cd "$RCVERBS_PACKAGES"
ls -- *.deb *.tar.gz

# The files of a package.
contents() { dpkg-deb -c "$1" | awk '{ print $6 }'; }
has() { contents "$1" | grep -E "$2" >/dev/null || fail "$1 has no $2"; }
has_not() { ! contents "$1" | grep -E "$2" >/dev/null || fail "$1 has $2"; }
library=$(ls librcverbs0.1_*.deb) development=$(ls librcverbs-dev_*.deb) tools=$(ls rcverbs-tools_*.deb)
has "$library" '/librcverbs\.so\.0\.1$'
has "$library" '/librcverbs_nvme\.so\.0\.1$'
has_not "$library" 'include/|\.so$|\.a$|bin/'
has "$development" '/librcverbs\.so$'
has "$development" 'include/rcverbs/rcverbs\.hpp$'
has "$development" 'pkgconfig/rcverbs\.pc$'
has "$development" 'pkgconfig/rcverbs-fabric\.pc$'
has "$development" 'pkgconfig/rcverbs-nvme\.pc$'
has "$development" 'include/rcverbs/nvme/target\.hpp$'
has "$development" 'cmake/rcverbs/rcverbs-config\.cmake$'
has_not "$development" 'bin/|\.so\.0'
for program in rdma-bench rdma-client rdma-copy rdma-doctor rdma-nvme rdma-server; do
    has "$tools" "bin/$program\$"
    has "$tools" "man1/$program\.1$"
    has "$tools" "completions/$program\$"
done
has "$tools" 'man7/rcverbs\.7$'
has "$tools" '/usr/lib/systemd/system/rdma-nvme\.service$'
has "$tools" '/usr/lib/systemd/system/rdma-copy@\.service$'
has "$tools" '/usr/lib/sysusers\.d/rcverbs\.conf$'
dpkg-deb --fsys-tarfile "$tools" | tar -xO ./usr/lib/systemd/system/rdma-nvme.service | grep '^ExecStart=/usr/bin/rdma-nvme serve' >/dev/null || fail "the service starts another program"
nbd=$(ls librcverbs-nvme-nbd0.1_*.deb)
has "$nbd" '/librcverbs_nvme_nbd\.so\.0\.1$'
dpkg-deb -f "$nbd" Depends | grep libnbd0 >/dev/null || fail "the package for NBD does not depend on libnbd0"
rbd=$(ls librcverbs-nvme-rbd0.1_*.deb)
has "$rbd" '/librcverbs_nvme_rbd\.so\.0\.1$'
dpkg-deb -f "$rbd" Suggests | grep librbd1 >/dev/null || fail "the package for Ceph does not suggest librbd1"
if dpkg-deb -f "$rbd" Depends | grep librbd1; then fail "the package for Ceph depends on librbd1"; fi
if dpkg-deb -f "$library" Depends | grep libnbd; then fail "the library's package depends on libnbd"; fi
fabric=$(ls rcverbs-fabric_*.deb)
has "$fabric" 'bin/rcverbs-fabric$'
has "$fabric" 'man1/rcverbs-fabric\.1$'
has "$fabric" 'completions/rcverbs-fabric$'
for name in librcverbs-fabric.so libibverbs.so.1 librdmacm.so.1; do has "$fabric" "/rcverbs-fabric/$name\$"; done
for script in postinst prerm; do dpkg-deb --ctrl-tarfile "$tools" | tar -tv | grep -E "^-rwxr-xr-x.*/$script\$" >/dev/null || fail "no $script"; done
for package in "$library" "$development" "$tools" "$fabric" "$nbd" "$rbd"; do has "$package" '/copyright$'; done
dpkg-deb -f "$library" Depends | grep libibverbs1 >/dev/null || fail "the library's package does not depend on libibverbs1"
tar -tzf rcverbs-*.tar.gz | grep 'include/rcverbs/rcverbs\.hpp$' >/dev/null || fail "the archive has no headers"

# The library exports only its own names, one of which names the Boost that it was built with, and its soname identifies compatible versions.
mkdir "$place/library"
dpkg-deb -x "$library" "$place/library"
so=$(ls "$place"/library/usr/lib/*/librcverbs.so.0.1)
readelf -d "$so" | grep 'SONAME.*\[librcverbs\.so\.0\.1\]' >/dev/null || fail "wrong SONAME"
# Excludes the C interface, and vague linkage: templates and inline functions of the standard library and of Boost that are instantiated here.
foreign=$(nm -DC --defined-only "$so" | awk '$2 != "V" && $2 != "W" && $2 != "u"' | grep -v ' rcverbs::' | grep -vE ' T rcverbs_[0-9a-z_]+$' | grep -vE ' (typeinfo|typeinfo name|vtable|guard variable) for rcverbs::' || true)
[ -z "$foreign" ] || fail "exported besides the library's own: $foreign"

# A fresh installation.
root=$place/root
"$source/test/package/root.sh" "$root"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
mkdir "$root/packages"
cp -- *.deb "$root/packages"
cp -r "$source/test/package/consumer" "$root/root/"
cp "$source"/docs/examples/*.cpp "$root/root/consumer"
quietly inside apt-get update
quietly inside sh -c 'apt-get install -y --no-install-recommends /packages/*.deb ibverbs-providers g++ cmake ninja-build'

quietly inside cmake -S /root/consumer -B /root/by-cmake -G Ninja
quietly inside cmake --build /root/by-cmake
quietly inside ctest --test-dir /root/by-cmake --output-on-failure --no-tests=error
# A coroutine client and a callback server, built against the packages only, on an RDMA device.
quietly "$source/test/softroce/vm" -- bash -c "
    mount --rbind /dev $root/dev && mount --rbind /sys $root/sys || exit 1
    chroot $root /root/by-cmake/callback_server >/tmp/said & server=\$!
    for i in {1..200}; do sleep 0.3; chroot $root /root/by-cmake/first 10.0.0.1; grep 'the client left 42' /tmp/said && exit 0; done
    exit 1"
# The package must not add its own compiler flags to other projects.
leaked=$(grep -ohE -- ' -(W[a-z]|f[a-z]|O[0-9s]|g[0-9]?|std=c\+\+[0-9]+)[^ ]*' "$root"/root/by-cmake/build.ninja | sort -u | grep -vE -- '^ -std=(c|gnu)\+\+20$' | grep -v -- '-Wl,' || true)
[ -z "$leaked" ] || fail "flags leak: $leaked"

flags=$(inside pkg-config --cflags --libs rcverbs)
case $flags in *-W* | *-O* | *" -f"* | *-std*) fail "pkg-config leaks flags: $flags" ;; esac
quietly inside sh -c "cd /root && g++ -std=c++20 consumer/first.cpp -o by-pkg-config $flags"
inside ldd /root/by-pkg-config | grep 'librcverbs\.so\.0\.1 => /' >/dev/null || fail "the program does not find its library"

for program in rdma-bench rdma-client rdma-copy rdma-doctor rdma-nvme rdma-server; do quietly inside "$program" --help; done
said=$(inside rdma-nvme serve --rbd rbd/disk --nqn nqn.2026-01.org.example:disk 2>&1 || true)
[[ $said == *"Debian's package librados2"* ]] || fail "rdma-nvme does not name what is missing for Ceph: $said"
status=0
inside rdma-doctor --address 198.51.100.7 --timeout 500ms >"$place/doctor" || status=$?
if [ $status != 1 ] || ! grep -q 'RDMA does not work' "$place/doctor"; then cat "$place/doctor"; fail "rdma-doctor: $status"; fi

quietly inside apt-get purge -y librcverbs0.1 librcverbs-dev rcverbs-tools rcverbs-fabric librcverbs-nvme-nbd0.1 librcverbs-nvme-rbd0.1
left=$(inside find / -xdev -path /packages -prune -o -path /root -prune -o -name '*rcverbs*' -print 2>/dev/null | grep -v '^/proc' || true)
[ -z "$left" ] || fail "left behind: $left"
echo "packages: as they should be"
