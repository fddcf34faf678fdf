#!/usr/bin/env bash
# service.sh PROGRAMS: what servers tell the service manager that starts them. Inside the virtual machine, for they listen.
set -u
programs=$1
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null' EXIT
fail() { echo "FAILED: $*"; tail -n 20 "$work"/*; exit 1; }
wait_for() {
    for _ in $(seq 200); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
    return 1
}
# heard WORDS: all that the manager has received, on one line; of a time only that it is one.
heard() { wait_for matches "$1" || fail "the manager heard: $(cat "$work/heard"); not: $1"; }
matches() { [ "$(tr '\n' ' ' <"$work/heard" | sed -E 's/[0-9]{4,}/TIME/; s/ $//')" = "$1" ]; }
# manager NAME: a service manager at that socket, which writes each message as a line.
manager() {
    : >"$work/heard"
    python3 - "$1" >"$work/heard" <<'PY' &
import socket, sys
name = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("\0" + name[1:] if name[0] == "@" else name)
print("listening", flush=True)
while True: print(s.recv(4096).decode(), flush=True)
PY
    manager=$!
    wait_for grep -q listening "$work/heard" || fail "no manager at $1"
}

mkdir "$work/served"
for name in "$work/socket" @rcverbs-test; do
    manager "$name"
    NOTIFY_SOCKET=$name "$programs/rdma-copy" serve "$work/served" --port 0 >"$work/copy" 2>&1 &
    server=$!
    heard 'listening READY=1'
    kill $server
    wait $server || fail "rdma-copy serve ended with $?"
    heard 'listening READY=1 STOPPING=1'
    kill $manager
done

if [ -x "$programs/rdma-nvme" ]; then
    manager @rcverbs-nvme
    echo '{"subsystems": [{"nqn": "nqn.test:disk", "namespaces": [{"memory": "1M"}]}]}' >"$work/nvme.json"
    NOTIFY_SOCKET=@rcverbs-nvme "$programs/rdma-nvme" serve --config "$work/nvme.json" --port 0 >"$work/nvme" 2>&1 &
    server=$!
    heard 'listening READY=1'
    kill -HUP $server
    heard 'listening READY=1 RELOADING=1 MONOTONIC_USEC=TIME READY=1'
    kill $server
    wait $server || fail "rdma-nvme ended with $?"
    heard 'listening READY=1 RELOADING=1 MONOTONIC_USEC=TIME READY=1 STOPPING=1'
fi
# A manager that is not there is no failure of a server.
NOTIFY_SOCKET=$work/nobody "$programs/rdma-copy" serve "$work/served" --port 0 >"$work/copy" 2>&1 &
server=$!
wait_for grep -q 'listening on port' "$work/copy" || fail "does not serve without its manager"
kill $server
wait $server || fail "rdma-copy serve ended with $?"
echo "the service manager was told"
