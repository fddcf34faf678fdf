#!/usr/bin/env bash
# compose_up.sh IMAGE_FILE FOLDER: tests docker/README.md's instructions for a machine with an RDMA device: starts a Docker engine in
# FOLDER, loads the run-time image from IMAGE_FILE, connects rdma-server and rdma-client in two containers, and mounts a disk that a
# container serves. Runs on the machine with the device: inside the SoftRoCE virtual machine. Needs root.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
image=$1 place=$2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
fail() {
    tail -n 40 "$place/engine.log" "$place/said" 2>/dev/null || true
    echo "compose_up.sh: $*" >&2
    exit 1
}
. test/docker/engine.sh

mkdir -p "$place"
# An overlay cannot be on top of the guest's own overlay.
mount -t tmpfs -o size=2g engine "$place"
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup /sys/fs/cgroup
# The guest's root is in memory; runc cannot pivot from it.
export DOCKER_RAMDISK=1
start_engine "$place" || fail "the engine did not start"
docker load -i "$image" >/dev/null || fail "the image cannot be loaded"

for mode in write atomic; do
    RCVERBS_MODE=$mode compose -f docker/compose.yaml up --abort-on-container-exit --exit-code-from client >"$place/said" 2>&1 ||
        fail "compose up ($mode) exited with $?"
    case $mode in
    write) wanted=('client.*remote buffer: message from passive/server side' 'server.*remote buffer: message from active/client side') ;;
    atomic) wanted=('client.*counter' 'server.*counter') ;;
    esac
    for line in "${wanted[@]}"; do grep "$line" "$place/said" >/dev/null || fail "nobody has said \"$line\""; done
    compose -f docker/compose.yaml down >"$place/said" 2>&1 || fail "compose down exited with $?"
    echo "docker: rdma-server and rdma-client met in two containers: $mode"
done

# A disk from a container: the kernel is the host that mounts it.
mkdir -p "$place/srv" "$place/mnt" /etc/nvme
truncate -s 64M "$place/srv/disk.img"
docker run --rm --name disk --network=host --device=/dev/infiniband --ulimit memlock=-1 --volume "$place/srv:/srv" rcverbs-runtime \
    rdma-nvme serve /srv/disk.img --nqn nqn.2026-01.io.rcverbs:disk >"$place/said" 2>&1 &
serving=$!
wait_for() { for _ in $(seq 1200); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.1; done; fail "waited in vain: $*"; }
wait_for grep 'on port 4420' "$place/said"
address=$(docker run --rm --network=host --device=/dev/infiniband rcverbs-runtime rdma-doctor --quiet) || fail "rdma-doctor finds no address"
modprobe nvme-rdma
nvme gen-hostnqn >/etc/nvme/hostnqn
nvme connect --transport rdma --traddr "$address" --trsvcid 4420 --nqn nqn.2026-01.io.rcverbs:disk ||
    fail "the host does not connect"
wait_for test -b /dev/nvme0n1
mkfs.ext4 -q /dev/nvme0n1
mount /dev/nvme0n1 "$place/mnt"
cp -r docker "$place/mnt/"
umount "$place/mnt"
mount /dev/nvme0n1 "$place/mnt"
diff -r docker "$place/mnt/docker" || fail "the copy differs"
umount "$place/mnt"
nvme disconnect --nqn nqn.2026-01.io.rcverbs:disk
docker stop disk >/dev/null
wait $serving || fail "the container of rdma-nvme ended with $?"
echo "docker: a disk that a container serves was mounted"
kill $engine
wait $engine || true
