#!/usr/bin/env bash
# callback_server.sh PROGRAMS: connects the documents' client (first.cpp) to their server (callback_server.cpp) on an RDMA device.
set -euo pipefail
programs=$1
address=${RCVERBS_TEST_ADDRESS:-10.0.0.1}
out=$(mktemp)
"$programs/docs_callback_server" >"$out" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true; rm -f "$out"' EXIT
for _ in $(seq 300); do
    "$programs/readme_example" "$address" >>"$out" 2>&1 || true
    if grep -q 'the client left 42' "$out"; then
        echo "the client left 42"
        exit 0
    fi
    sleep 0.2
done
cat "$out"
exit 1
