#!/usr/bin/env bash
# addresses.sh PROGRAMS: machines whose addresses, devices or network namespaces are unusual. Inside the virtual machine, whose network it
# changes.
set -uo pipefail
programs=$1
work=$(mktemp -d)
fail() { echo "FAILED: $*"; cat "$work"/* 2>/dev/null; exit 1; }

# exchange ADDRESS SERVER-OPTION…: a server, and a client, with the options $from, that visits it at that address.
exchange() {
    local address=$1 server
    shift
    "$programs/rdma-server" write --count 1 "$@" >"$work/server" 2>&1 &
    server=$!
    for _ in $(seq 100); do grep -q 'listening on port' "$work/server" && break; sleep 0.1; done
    # shellcheck disable=SC2086 # options
    "$programs/rdma-client" write ${from:-} "$address" "$(sed -n 's/listening on port \(.*\)\.$/\1/p' "$work/server")" >"$work/client" 2>&1 || fail "client of $address"
    wait $server || fail "server at $address"
}

# A machine with nothing but link-local addresses.
ip addr del 10.0.0.1/24 dev v0
ip addr del fd00::1/64 dev v0
address=$(ip -6 -o addr show dev v0 scope link | awk '{ print $4 }' | cut -d/ -f1)
# Until another machine could have answered (duplicate address detection), the address cannot be used.
for _ in $(seq 100); do ip -6 -o addr show dev v0 tentative | grep -q . || break; sleep 0.1; done
"$programs/rdma-doctor" >"$work/doctor" 2>&1
[ "$("$programs/rdma-doctor" --quiet)" = "$address%v0" ] || fail "the doctor does not find $address%v0"
exchange "$address%v0"
exchange "$address%v0" --bind "$address%v0"
from="--from $address%v0" exchange "$address%v0"
"$programs/rdma-server" write --bind "$address" >"$work/server" 2>&1
[ $? = 3 ] && grep -q "needs its network interface: $address%eth0" "$work/server" || fail "an address without its interface"
ip addr add 10.0.0.1/24 dev v0
ip addr add fd00::1/64 dev v0 nodad
exchange ::ffff:10.0.0.1
exchange ::ffff:10.0.0.1 --bind ::ffff:10.0.0.1
exchange fd00::1

# A second device whose file is missing, as in a container: a remark, while the first one works.
ip link add v2 type veth peer name v2peer
ip link set v2peer up
ip link set v2 up
ip addr add 10.0.2.1/24 dev v2
rdma link add rxe2 type rxe netdev v2
sleep 1
rm /dev/infiniband/uverbs1
"$programs/rdma-doctor" --json >"$work/doctor" || fail "the doctor's status"
python3 - "$work/doctor" <<'PY' || fail "the doctor's findings"
import json, sys
seen = json.load(open(sys.argv[1]))
about = [f for f in seen["findings"] if "uverbs1" in f["what"]]
sys.exit(0 if seen["works"] and len(about) == 1 and not about[0]["prevents"] else 1)
PY
"$programs/rdma-client" write 10.0.2.1 7471 >"$work/client" 2>&1
[ $? = 3 ] && grep -q 'check the files in /dev/infiniband' "$work/client" || fail "the cause of a missing device file"
rdma link delete rxe2

# A firewall that drops RoCE packets, which a connection of the machine to itself does not meet.
nft 'table inet doctor { chain input { type filter hook input priority 0; policy drop; ct state established,related accept; }; }' || fail nft
"$programs/rdma-doctor" >"$work/doctor" 2>&1
[ $? = 1 ] && grep -q '^RDMA works within this machine only' "$work/doctor" || fail "a firewall that drops"
command=$(sed -n 's/^    \(nft insert rule .*\)/\1/p' "$work/doctor")
[ -n "$command" ] && sh -c "$command" || fail "the firewall's remedy"
"$programs/rdma-doctor" >"$work/doctor" 2>&1 || fail "a firewall that drops no longer"
nft delete table inet doctor
# One for the best address only: programs would take that one.
nft 'table ip doctor { chain input { type filter hook input priority 0; policy drop; }; }' || fail nft
"$programs/rdma-doctor" >"$work/doctor" 2>&1
[ $? = 1 ] && grep -q '^RDMA works within this machine only.* at 10.0.0.1\.$' "$work/doctor" || fail "a firewall for IPv4"
[ "$("$programs/rdma-doctor" --quiet)" = 10.0.0.1 ] || fail "the address within the machine"
"$programs/rdma-doctor" --address fd00::1 >"$work/doctor" 2>&1 || fail "an address that the firewall lets pass"
nft delete table ip doctor

# Network namespaces: one that shares the device but not its interface, and one without the device.
ip netns add other
ip netns exec other "$programs/rdma-doctor" >"$work/doctor" 2>&1
[ $? = 1 ] && grep -q 'v0, the interface of port 1 of rxe0, is in another network namespace' "$work/doctor" || fail "a namespace with the device"
ip netns del other
sleep 1
rdma system set netns exclusive || fail "rdma system"
ip netns add other
ip netns exec other "$programs/rdma-doctor" >"$work/doctor" 2>&1
[ $? = 1 ] && grep -q 'the RDMA device rxe0 belongs to another network namespace' "$work/doctor" || fail "a namespace without the device"
ip netns del other

# Limits of a cgroup.
rdma system set netns shared
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null
echo +rdma >/sys/fs/cgroup/cgroup.subtree_control && mkdir /sys/fs/cgroup/few || fail "the controller rdma"
in_group() { sh -c 'echo $$ >/sys/fs/cgroup/few/cgroup.procs; exec "$@"' sh "$programs/rdma-doctor" >"$work/doctor" 2>&1; }
for limit in hca_handle=0 'hca_handle=max hca_object=3'; do
    echo "rxe0 $limit" >/sys/fs/cgroup/few/rdma.max
    in_group
    [ $? = 1 ] && grep -q 'the cgroup /sys/fs/cgroup/few may have' "$work/doctor" || fail "a limit $limit"
    ! grep -q 'ibverbs-providers\|ulimit -u' "$work/doctor" || fail "the wrong remedy for $limit"
done
# What the doctor takes for enough must be.
echo 'rxe0 hca_handle=1 hca_object=12' >/sys/fs/cgroup/few/rdma.max
in_group || fail "a limit that is high enough"

# A small MTU, a /sys of another network namespace, and an empty one.
ip link set v0 mtu 1500
for _ in $(seq 100); do "$programs/rdma-doctor" >"$work/doctor"; grep -q 'MTU 1024' "$work/doctor" && break; sleep 0.1; done
grep -q 'sends packets of 1024 bytes, because the MTU of v0 is 1500' "$work/doctor" || fail "a small MTU"
unshare --net "$programs/rdma-doctor" >"$work/doctor"
[ $? = 1 ] && grep -q '/sys shows devices and interfaces of another network namespace' "$work/doctor" || fail "a foreign /sys"
unshare --mount sh -c 'mount -t tmpfs none /sys; exec "$@"' sh "$programs/rdma-doctor" >"$work/doctor"
[ $? = 1 ] && grep -q '/sys is empty' "$work/doctor" || fail "an empty /sys"
rm -rf "$work"
echo passed
