#!/usr/bin/env bash
# networks.sh PROGRAMS: two containers on a network: each has processes, interfaces and a directory of its own, and its programs run as
# nobody, without /dev/infiniband. The programs of one reach those of the other by RDMA, over TCP. Inside the virtual machine, because the kernel must have veth.
set -uo pipefail
programs=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; tail -n 40 "$work"/*.out; exit 1; }

chmod 755 "$work"
cp -r "$programs"/rcverbs-fabric{,.d} "$programs/rdma-copy" "$work/"
for name in a b; do
    ip netns add "$name" || fail "a namespace"
    ip -n "$name" link set lo up
    mkdir -p "$work/$name/run" "$work/$name/data"
done
ip link add a0 netns a type veth peer name b0 netns b || fail 'a link'
ip -n a addr add 192.0.2.1/24 dev a0
ip -n b addr add 192.0.2.2/24 dev b0
ip -n a link set a0 up
ip -n b link set b0 up
head -c 3000000 /dev/urandom >"$work/b/data/large"
seq 1000 >"$work/b/data/small"
chown -R 65534:65534 "$work/a" "$work/b"
chmod 700 "$work/a/run" "$work/b/run"

# within NAME COMMAND…: in a container.
within() {
    local name=$1
    shift
    ip netns exec "$name" unshare --mount --pid --fork --kill-child sh -c 'mount -t tmpfs none /dev/infiniband 2>/dev/null; mount -t proc none /proc; exec "$@"' sh \
        setpriv --reuid 65534 --regid 65534 --clear-groups env XDG_RUNTIME_DIR="$work/$name/run" timeout -k 5 60 "$@"
}
serves() {
    local i
    for ((i = 0; i < 200; ++i)); do
        within a "$work/rcverbs-fabric" list 2>/dev/null | grep -q "$1" && return
        sleep 0.1
    done
    fail "nobody serves $1"
}

within a "$work/rcverbs-fabric" run -q --listen tcp:192.0.2.1:7999 rping -s -C 20 >"$work/server.out" 2>&1 &
server=$!
serves 'port 7174'
within b "$work/rcverbs-fabric" run -q --join tcp:192.0.2.1:7999 rping -c -v -C 20 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail "rping ended with $?"
[ "$(grep -c 'ping data: rdma-ping' "$work/client.out")" = 20 ] || fail 'not twenty answers'
wait "$server" || fail "its server ended with $?"

within a "$work/rcverbs-fabric" run -q --listen tcp:192.0.2.1:7998 "$work/rdma-copy" serve "$work/a/data" >"$work/server.out" 2>&1 &
serves 'port'
within b "$work/rcverbs-fabric" run -q --join tcp:192.0.2.1:7998 "$work/rdma-copy" "$work/b/data/" 10.77.0.1:/ >"$work/client.out" 2>&1 || fail "rdma-copy ended with $?"
diff -r "$work/b/data" "$work/a/data/data" || fail 'a file differs'
kill %2 2>/dev/null
wait
echo 'two containers on a network: passed'
