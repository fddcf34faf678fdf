#!/usr/bin/env bash
# docker.sh [--full]: tests docker/ from scratch: starts its own Docker engine, makes a base image with debootstrap, builds the images, runs
# two containers that connect over an RDMA device (in the SoftRoCE virtual machine, if this machine has none), and runs the harness in a
# container without privileges. Removes everything afterwards, except that the Debian packages and the archive of the image `build` are
# copied to the folder $RCVERBS_PACKAGES, if that is set.
#
# --full runs every device test in the harness; without it only the soak test, which is built quickly.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
full=${1:-}
skip() {
    echo "skipped: $*"
    exit 0
}
fail() {
    echo "docker.sh: $*" >&2
    exit 1
}
quietly() { "$@" >"$place/log" 2>&1 || { tail -n 60 "$place/log"; fail "did not succeed: $*"; }; }

[ "$(id -u)" = 0 ] || skip "a Docker engine of one's own needs root"
command -v dockerd >/dev/null || skip "there is no Docker engine"

. "$source/test/docker/engine.sh"
place=$(mktemp -d)
engine=''
cleanup() {
    if [ -n "$engine" ]; then
        kill "$engine" 2>/dev/null || true
        wait "$engine" 2>/dev/null || true
    fi
    # Unmounts the engine's remaining mounts.
    awk -v under="$place/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount -l
    rm -rf "$place"
}
trap cleanup EXIT

start_engine "$place" || fail "the Docker engine does not start: $(grep -E 'level=(error|fatal)|failed' "$place/engine.log" | tail -n 1)"

# The compose file must be valid.
cd "$source"
quietly compose -f docker/compose.yaml config
compose -f docker/compose.yaml config | grep 'target: runtime' >/dev/null || fail "compose.yaml has no target runtime"

# The base image that the Dockerfile names is made here, since it cannot be pulled everywhere.
"$source/test/package/root.sh" "$place/root" bookworm
# Without the files that the slim image omits.
tar -C "$place/root" -c --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' \
    --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' . | docker import - debian:bookworm-slim >/dev/null
rm -rf "$place/root"
start=$SECONDS
build() { quietly docker build --network=host -f docker/Dockerfile "$@" .; }
build --target build -t rcverbs-build
build --target runtime -t rcverbs-runtime
echo "docker: images build and runtime made in $((SECONDS - start)) s"

if [ -n "${RCVERBS_PACKAGES:-}" ]; then
    rm -rf "$RCVERBS_PACKAGES"
    mkdir -p "$RCVERBS_PACKAGES"
    docker run --rm --network=none rcverbs-build sh -c 'cd build/package/packages && tar -c *.deb *.tar.gz' | tar -C "$RCVERBS_PACKAGES" -x
fi

# The run-time image must have the programs' libraries, but no compiler.
run() { docker run --rm --network=host "$@"; }
for program in rdma-server rdma-client rdma-bench rdma-doctor rdma-nvme; do quietly run rcverbs-runtime $program --help; done
if run rcverbs-runtime sh -c 'command -v g++ cmake git'; then fail "the run-time image has tools to build"; fi
if test/softroce/usable-device >/dev/null; then
    status=0
    compose -f docker/compose.yaml up --abort-on-container-exit --exit-code-from client || status=$?
    [ $status = 0 ] || fail "compose up exited with $status"
    echo "docker: rdma-server and rdma-client in two containers on this machine's RDMA device"
else
    # rdma-doctor must print what the container lacks.
    status=0
    run rcverbs-runtime rdma-doctor >"$place/doctor" || status=$?
    if [ $status != 1 ] || ! grep -q -- '--device=/dev/infiniband' "$place/doctor"; then cat "$place/doctor"; fail "rdma-doctor: $status"; fi
    start=$SECONDS
    docker save rcverbs-runtime >"$place/runtime.tar"
    test/softroce/vm --memory 4096 -- test/docker/compose_up.sh "$place/runtime.tar" "$place/guest" ||
        fail "the containers did not work in the SoftRoCE virtual machine"
    rm "$place/runtime.tar"
    echo "docker: compose up inside the virtual machine in $((SECONDS - start)) s"
fi

start=$SECONDS
if [ "$full" = --full ]; then
    build --target harness -t rcverbs-harness
    chosen=()
else
    build --target harness --build-arg TESTS=soak -t rcverbs-harness
    chosen=(-R '^device\.soak_3s$')
fi
echo "docker: image harness made in $((SECONDS - start)) s"
start=$SECONDS
# Without network, privileges or devices.
docker run --rm --network=none rcverbs-harness "${chosen[@]}" >"$place/harness" 2>&1 || { tail -n 60 "$place/harness"; fail "the harness failed"; }
grep -q 'remote buffer: message from passive/server side' "$place/harness" || fail "the harness has run no demo"
grep -E 'tests passed, 0 tests failed out of [1-9]' "$place/harness" || { tail -n 40 "$place/harness"; fail "the harness has run no tests"; }
echo "docker: harness run in $((SECONDS - start)) s"
