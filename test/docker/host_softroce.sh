#!/usr/bin/env bash
# host_softroce.sh: tests that docker/host-softroce gives a network interface a working SoftRoCE device, prints its state, removes it, and
# prints what is missing. Runs inside the SoftRoCE virtual machine.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
doctor=$1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
fail() {
    cat "$place/said"
    echo "host_softroce.sh: $*" >&2
    exit 1
}
# says STATUS TEXT COMMAND…: the command exits with STATUS and prints TEXT.
says() {
    local wanted=$1 text=$2 status=0
    shift 2
    "$@" >"$place/said" 2>&1 || status=$?
    [ $status = "$wanted" ] || fail "exit status $status, not $wanted: $*"
    grep -F -- "$text" "$place/said" >/dev/null || fail "does not say \"$text\": $*"
}
tool=docker/host-softroce

says 2 'up|down|status' $tool
says 2 'up|down|status' $tool sideways

ip link add w0 type veth peer name w1
ip addr add 10.9.0.1/24 dev w0
ip link set w0 up
ip link set w1 up
says 1 'this needs root' setpriv --reuid 65534 --clear-groups $tool up w0
says 1 'there is no network interface w7' $tool up w7
says 1 'no default route' $tool up
# An interface that has a device gets no second one.
says 0 'on v0: 10.0.0.1 fd00::1' $tool up v0
says 0 'on w0: 10.9.0.1' $tool up w0
says 0 'module rdma_rxe: loaded' $tool status
says 0 '/dev/infiniband/rdma_cm: may be opened' $tool status
# Running it again is no error.
says 0 'on w0: 10.9.0.1' $tool up w0
says 1 'rxe_rcverbs is on another network interface' $tool up w1
says 0 'RDMA works' "$doctor" --address 10.9.0.1
says 0 'there is no device rxe_rcverbs' $tool down
says 0 'there is no device rxe_rcverbs' $tool down
[ ! -e /sys/class/infiniband/rxe_rcverbs ] || fail "the device is still there"
chmod go-rw /dev/infiniband/rdma_cm
says 1 '/dev/infiniband/rdma_cm: not by this user; chmod a+rw' setpriv --reuid 65534 --clear-groups $tool status
# Without any device, status reports that.
rdma link delete rxe0
says 1 'no RDMA device; make one: docker/host-softroce up' $tool status

# An interface that cannot carry SoftRoCE: rdma link add fails.
mkdir "$place/stubs"
printf '#!/bin/sh\nexit 1\n' >"$place/stubs/rdma"
chmod +x "$place/stubs/rdma"
says 1 'w0 cannot carry a SoftRoCE device' env PATH="$place/stubs:$PATH" $tool up w0
rm "$place/stubs/rdma"

# A host whose kernel lacks the module.
rmmod rdma_rxe
printf '#!/bin/sh\nexit 1\n' >"$place/stubs/modinfo"
chmod +x "$place/stubs/modinfo"
says 1 "the kernel $(uname -r) has no module rdma_rxe" env PATH="$place/stubs:$PATH" $tool up w0
says 1 'run harness, which brings its own kernel' env PATH="$place/stubs:$PATH" $tool up w0
says 1 'module rdma_rxe: not loaded' $tool status
echo "host-softroce: as it should be"
