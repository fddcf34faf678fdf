#!/usr/bin/env bash
# compose_up.sh IMAGE_FILE FOLDER: what docker/README.md promises on a machine with an RDMA device: starts a Docker engine in FOLDER,
# loads the run-time image that was saved in IMAGE_FILE, and lets rdma-server and rdma-client meet in two containers.
# Runs where the device is: inside the SoftRoCE virtual machine. Needs root.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
image=$1 place=$2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
fail() {
    tail -n 40 "$place/engine.log" "$place/said" 2>/dev/null || true
    echo "compose_up.sh: $*" >&2
    exit 1
}
compose() { if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi; }

mkdir -p "$place"
# An overlay cannot lie on the guest's own.
mount -t tmpfs -o size=2g engine "$place"
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup /sys/fs/cgroup
# The guest's root is in memory, from which runc cannot pivot.
export DOCKER_HOST=unix://$place/sock DOCKER_CONFIG=$place/config DOCKER_RAMDISK=1
dockerd --iptables=false --ip6tables=false --bridge=none --data-root "$place/data" --exec-root "$place/exec" \
    --pidfile "$place/pid" -H "$DOCKER_HOST" >"$place/engine.log" 2>&1 &
engine=$!
for _ in $(seq 300); do
    if docker info >/dev/null 2>&1 || ! kill -0 $engine 2>/dev/null; then break; fi
    sleep 0.3
done
docker load -i "$image" >/dev/null || fail "the engine did not start"

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
kill $engine
wait $engine || true
