#!/usr/bin/env bash
# demo.sh: installs missing packages, builds, and runs rdma-server and rdma-client: write, then read. Uses this machine's RDMA device if one
# is usable, else the SoftRoCE virtual machine. RCVERBS_PRESET: the build's preset.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${RCVERBS_PRESET:-release}

# Runs one server and one client and shows their output; both must succeed.
run_mode() {
    local mode=$1 address=$2 bin=build/$preset/bin out port='' server client_status=0 server_status=0
    out=$(mktemp)
    "$bin/rdma-server" "$mode" --count 1 >"$out" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        port=$(sed -n 's/^listening on port \([0-9]*\)\.$/\1/p' "$out")
        if [ -n "$port" ] || ! kill -0 "$server" 2>/dev/null; then break; fi
        sleep 0.05
    done
    printf '\n$ rdma-client %s %s %s\n' "$mode" "$address" "$port"
    "$bin/rdma-client" "$mode" "$address" "$port" || client_status=$?
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
