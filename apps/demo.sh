#!/usr/bin/env bash
# demo.sh [--fabric]: installs missing packages, builds, and runs rdma-server and rdma-client: write, then read. Uses this machine's RDMA
# device if one is usable, else the SoftRoCE virtual machine. With --fabric: devices in memory, which need no rights and start at once.
# RCVERBS_PRESET: the build's preset. RCVERBS_BIN: the folder of the programs.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${RCVERBS_PRESET:-release}
# What starts the server and the client on devices in memory.
server_node=() client_node=()

# Runs one server and one client and shows their output; both must succeed.
run_mode() {
    local mode=$1 address=$2 bin=${RCVERBS_BIN:-build/$preset/bin} out port='' server client_status=0 server_status=0
    out=$(mktemp)
    "${server_node[@]}" "$bin/rdma-server" "$mode" --count 1 >"$out" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        port=$(sed -n 's/^listening on port \([0-9]*\)\.$/\1/p' "$out")
        if [ -n "$port" ] || ! kill -0 "$server" 2>/dev/null; then break; fi
        sleep 0.05
    done
    printf '\n$ rdma-client %s %s %s\n' "$mode" "$address" "$port"
    "${client_node[@]}" "$bin/rdma-client" "$mode" "$address" "$port" || client_status=$?
    # Without a client the server would wait for ever.
    if [ $client_status != 0 ]; then kill "$server" 2>/dev/null || true; fi
    wait "$server" || server_status=$?
    printf '\n$ rdma-server %s --count 1\n' "$mode"
    cat "$out"
    rm -f "$out"
    if [ $client_status != 0 ] || [ $server_status != 0 ]; then
        echo "demo: rdma-client exited with $client_status, rdma-server with $server_status" >&2
        return 1
    fi
}

if [ "${1:-}" = --on ]; then # inside the machine with the device
    run_mode write "$2"
    run_mode read "$2"
    exit 0
fi

run_on_fabric() {
    local run=("${RCVERBS_BIN:-build/$preset/bin}/rcverbs-fabric" run -q --network "demo-$$" --node)
    server_node=("${run[@]}" 1) client_node=("${run[@]}" 2)
    run_mode write 10.77.0.1
    run_mode read 10.77.0.1
}
case ${1:-} in
--fabric)
    echo 'demo: on devices in memory, 10.77.0.1 and 10.77.0.2'
    .ci/install-deps build
    # A folder of its own: the tests' needs are not installed.
    cmake --preset "$preset" -B build/demo -DRCVERBS_BUILD_TESTS=OFF -DRCVERBS_BUILD_NVME=OFF >/dev/null
    cmake --build build/demo --target rdma-server rdma-client rcverbs-fabric
    preset=demo
    run_on_fabric
    exit 0
    ;;
--on-fabric) # what is built already
    run_on_fabric
    exit 0
    ;;
esac

if device=$(test/softroce/usable-device); then
    read -r device address _ <<<"$device"
    echo "demo: on this machine's RDMA device $device ($address)"
else
    echo "demo: on rxe0 (10.0.0.1) in the SoftRoCE virtual machine; this machine has no usable RDMA device"
fi
.ci/install-deps build test
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" --target rdma-server rdma-client
if [ -n "$device" ]; then
    apps/demo.sh --on "$address"
else
    test/softroce/vm -- apps/demo.sh --on 10.0.0.1
fi
