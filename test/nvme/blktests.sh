#!/usr/bin/env bash
# blktests.sh PROGRAMS [TEST…]: tests of blktests' group nvme on rdma-nvme, inside the virtual machine. The environment variable
# RCVERBS_BLKTESTS names a checkout of https://github.com/osandov/blktests in which `make` was run; no distribution has a package of it, so
# without one this is skipped. The report is like ctest's.
set -u
programs=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Those that have a target that is not the kernel's and run on Debian 12's kernel; docs/reference/nvme-coverage.md has the others.
all=${*:-003 004 005 006 008 014 018 019 021 022 023 025 026 027 028 029 038 040 047 061}
count=$(wc -w <<<"$all") number=0 bad=0 left_out=0 began=$SECONDS
if [ ! -x "${RCVERBS_BLKTESTS:-/none}/check" ]; then
    echo "  1/1 Test   #1: blktests ...***Skipped   0.00 sec"
    echo "skipped: RCVERBS_BLKTESTS names no checkout of blktests, which Debian has no package of"
    printf '\n100%% tests passed, 0 tests failed out of 1\n\nTotal Test time (real) = 0 sec\n'
    exit 0
fi
export RCVERBS_PROGRAMS=$programs RCVERBS_BLKTESTS_WORK
RCVERBS_BLKTESTS_WORK=$(mktemp -d)
cp -r "$RCVERBS_BLKTESTS" "$RCVERBS_BLKTESTS_WORK/blktests"
cd "$RCVERBS_BLKTESTS_WORK/blktests" || exit 1
# The guest has no udev: its rules are not needed, but blktests waits for it.
mkdir "$RCVERBS_BLKTESTS_WORK/bin"
cat >"$RCVERBS_BLKTESTS_WORK/bin/udevadm" <<'SH'
#!/bin/sh
# Waits until the disks that the kernel announces are there.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    missing=0
    for disk in /sys/class/block/nvme*n*; do [ ! -e "$disk" ] || [ -b "/dev/${disk##*/}" ] || missing=1; done
    [ $missing = 1 ] || exit 0
    sleep 0.1
done
SH
chmod +x "$RCVERBS_BLKTESTS_WORK/bin/udevadm"
PATH=$RCVERBS_BLKTESTS_WORK/bin:$PATH
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
modprobe nvme-rdma
mkdir -p /etc/nvme
for name in $all; do
    number=$((number + 1)) start=$(date +%s%N)
    NVME_TARGET_CONTROL=$here/blktests_control USE_RXE=1 NVMET_TRTYPES=rdma NVME_IMG_SIZE=64M ./check "nvme/$name" >"$RCVERBS_BLKTESTS_WORK/output" 2>&1
    took=$(awk "BEGIN { printf \"%.2f\", ($(date +%s%N) - $start) / 1e9 }")
    if grep -q '\[failed\]' "$RCVERBS_BLKTESTS_WORK/output"; then
        verdict='***Failed' bad=$((bad + 1))
    elif grep -q '\[passed\]' "$RCVERBS_BLKTESTS_WORK/output"; then
        verdict='   Passed'
    else
        verdict='***Skipped' left_out=$((left_out + 1))
    fi
    printf '%3d/%d Test %3s: blktests nvme/%s ...%s %6s sec\n' $number "$count" "#$number" "$name" "$verdict" "$took"
    [ "$verdict" = '   Passed' ] || cat "$RCVERBS_BLKTESTS_WORK/output"
    "$here/blktests_control" cleanup
    nvme disconnect-all 2>/dev/null
done
echo
echo "$((100 * (count - bad) / count))% tests passed, $bad tests failed out of $count"
echo
echo "Total Test time (real) = $((SECONDS - began)) sec"
[ $bad = 0 ]
