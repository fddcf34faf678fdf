#!/usr/bin/env bash
# doctor_peer.sh PROGRAMS: rdma-doctor between two machines: a path that works, and one that drops packets. Inside the virtual machine
# with --topology pair, whose network it changes.
set -uo pipefail
doctor=$1/rdma-doctor
work=$(mktemp -d)
fail() { echo "FAILED: $*"; cat "$work"/*; exit 1; }

# expect STATUS TEXT: the test of the peer.
expect() {
    "$doctor" --peer 10.0.1.1 --address 10.0.0.1 --timeout 3s >"$work/peer" 2>&1
    [ $? = "$1" ] && grep -q "$2" "$work/peer" || fail "$2"
}

expect 1 'packets arrive both ways, but at port 7475 of 10.0.1.1 no program listens'
"$doctor" --serve >"$work/serve" 2>&1 &
server=$!
for _ in $(seq 100); do grep -q 'listening on port 7475' "$work/serve" && break; sleep 0.1; done
grep -q 'listening on port 7475' "$work/serve" || fail "the server does not listen"
expect 0 'path MTU 4096; packets of up to 4096 bytes arrived there, of up to 4096 bytes here'
grep -q 'RDMA works between this machine and 10.0.1.1' "$work/peer" || fail "the verdict"
for _ in $(seq 100); do grep -q 'packets of all sizes arrived both ways' "$work/serve" && break; sleep 0.1; done
grep -q 'packets of all sizes arrived both ways' "$work/serve" || fail "the server's verdict"

# A network with a smaller MTU: connecting takes small packets only.
nft 'table netdev doctor { chain in { type filter hook ingress device v1 priority 0; meta length > 1400 drop; }; }' || fail nft
expect 1 'packets of 2048 bytes do not arrive from this machine to 10.0.1.1, those of 1024 bytes do'
nft delete table netdev doctor
nft 'table netdev doctor { chain in { type filter hook ingress device v0 priority 0; meta length > 1400 drop; }; }' || fail nft
expect 1 'packets of 2048 bytes do not arrive from 10.0.1.1 to this machine, those of 1024 bytes do'
nft delete table netdev doctor

# A firewall of the peer.
nft 'table inet doctor { chain input { type filter hook input priority 0; iifname v1 udp dport 4791 drop; }; }' || fail nft
expect 1 '10.0.1.1 does not answer'
nft delete table inet doctor
kill $server
wait $server || fail "the server's status"
rm -rf "$work"
echo passed
