#!/usr/bin/env bash
# request_server.sh PROGRAMS: the documents' server of requests and its client, on an RDMA device.
set -euo pipefail
program=$1/docs_request_server
address=${RCVERBS_TEST_ADDRESS:-10.0.0.1}
folder=$(mktemp -d)
"$program" serve "$address" >"$folder/server" 2>&1 &
server=$!
trap 'kill -KILL $server 2>/dev/null || true; rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; cat "$folder"/*; exit 1; }

# The client connects again until the server listens.
"$program" put "$address" greeting hello >"$folder/put" 2>&1 || fail "put"
[ "$("$program" get "$address" greeting 2>"$folder/get")" = hello ] || fail "get"
long=$(head -c 60000 /dev/zero | tr '\0' x)
"$program" put "$address" long "$long" >"$folder/put" 2>&1 || fail "put of a large text"
[ "$("$program" get "$address" long 2>"$folder/get")" = "$long" ] || fail "get of a large text"
"$program" get "$address" nothing >"$folder/get" 2>&1 && fail "an unknown key was found"
grep -q 'unknown key' "$folder/get" || fail "no reason"
kill -TERM $server
wait $server || fail "the server did not end in order"
echo "a server of requests, and its client"
