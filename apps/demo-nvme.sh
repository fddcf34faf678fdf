#!/usr/bin/env bash
# demo-nvme.sh: installs missing packages, builds rdma-nvme, and in the SoftRoCE virtual machine serves a file, connects the kernel's
# initiator, makes a file system, copies a tree, verifies it, and disconnects. RCVERBS_PRESET: the build's preset.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${RCVERBS_PRESET:-release}
nqn=nqn.2026-01.org.example:disk

show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

if [ "${1:-}" = --inside ]; then
    place=$(mktemp -d)
    mkdir -p "$place/mnt" /etc/nvme
    [ -s /etc/nvme/hostnqn ] || nvme gen-hostnqn >/etc/nvme/hostnqn
    show truncate -s 256M "$place/disk.img"
    printf '\n$ rdma-nvme serve disk.img --nqn %s\n' $nqn
    "build/$preset/bin/rdma-nvme" serve "$place/disk.img" --nqn $nqn >"$place/log" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        if grep -q 'on port' "$place/log" || ! kill -0 $server 2>/dev/null; then break; fi
        sleep 0.05
    done
    show modprobe nvme-rdma
    show nvme discover --transport rdma --traddr 10.0.0.1 --trsvcid 4420
    show nvme connect --transport rdma --traddr 10.0.0.1 --trsvcid 4420 --nqn $nqn
    for _ in $(seq 100); do
        if [ -b /dev/nvme0n1 ]; then break; fi
        sleep 0.05
    done
    show nvme list
    show mkfs.ext4 -q /dev/nvme0n1
    show mount /dev/nvme0n1 "$place/mnt"
    show cp -r docs "$place/mnt/docs"
    show umount "$place/mnt"
    show mount /dev/nvme0n1 "$place/mnt"
    show diff -r docs "$place/mnt/docs"
    echo "the copy is the same."
    show umount "$place/mnt"
    show nvme disconnect --nqn $nqn
    kill $server
    wait $server
    printf '\nrdma-nvme printed:\n'
    cat "$place/log"
    exit 0
fi

.ci/install-deps build test
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" --target rdma-nvme
test/softroce/vm --memory 2048 -- apps/demo-nvme.sh --inside
