#!/usr/bin/env bash
# vm_test.sh CASE: tests that the virtual machine works as its help describes. Run natively, by ctest, one case at a time.
set -uo pipefail
vm=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/vm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() { echo "FAILED: $*"; cat "$work"/out "$work"/err 2>/dev/null; exit 1; }
expect_status() {
    local wanted=$1 got=0
    shift
    "$@" >out 2>err || got=$?
    [ "$got" = "$wanted" ] || fail "status $got instead of $wanted from: $*"
}

case $1 in
passes_through)
    export FROM_OUTSIDE='a "quoted" value'
    expect_status 7 "$vm" -- bash -c 'echo "said $FROM_OUTSIDE $1"; echo complained >&2; pwd >"$0/pwd"; echo kept >build/vm-out/kept; echo lost >"$0/lost"; exit 7' "$work" 'an argument'
    [ "$(cat out)" = 'said a "quoted" value an argument' ] || fail "standard output"
    [ "$(cat err)" = complained ] || fail "standard error"
    [ "$(cat build/vm-out/kept)" = kept ] || fail "the output folder was not kept"
    [ ! -e lost ] || fail "the guest wrote to the host"
    [ -s build/vm-out/kernel.log ] || fail "no kernel log"
    ;;
killed) # a killed command is reported
    expect_status 137 "$vm" -- bash -c 'kill -KILL $$' ;;
timeout) # the limit includes the boot, which is slow on a busy machine
    start=$SECONDS
    expect_status 0 "$vm" -- true
    limit=$((3 * (SECONDS - start) + 10))
    expect_status 201 "$vm" --timeout $limit -- sleep 1000
    grep -q "still running after $limit s" err || fail "no reason given" ;;
panic) # the console is shown after a crash
    expect_status 202 "$vm" -- bash -c 'echo c >/proc/sysrq-trigger; sleep 100'
    grep -q 'sysrq triggered crash' err || fail "the console is not shown" ;;
no_boot)
    expect_status 200 "$vm" --memory 16 --timeout 8 -- true ;;
hung_boot) # a machine that hangs before its kernel's first message is ended, and shows where its processors are
    mkdir bin
    printf '#!/bin/sh\nexec %s "$@" -S\n' "$(command -v qemu-system-x86_64)" >bin/qemu-system-x86_64
    chmod +x bin/qemu-system-x86_64
    PATH=$work/bin:$PATH RCVERBS_VM_BOOT_SECONDS=2 expect_status 200 "$vm" --accel tcg -- true
    grep -q 'did not boot within 2 s' err || fail "no reason given"
    [ "$(grep -c 'EIP=0000fff0' err)" = 6 ] || fail "no processors: two, three times" ;;
login_path) # works with a user's PATH without sbin, and an empty cache
    mkdir home
    expect_status 0 env PATH=/usr/local/bin:/usr/bin:/bin XDG_CACHE_HOME="$work/home" "$vm" -- bash -c 'rdma link show && tc -V'
    grep -q rxe0 out || fail "no device" ;;
kernel) # the pinned kernel boots, with what the tests need of it
    expect_status 0 "$vm" --kernel 6.12 --topology pair -- bash -c 'uname -r && for module in nvme-rdma nvmet-rdma null_blk brd loop ext4 xfs dm-mod sch_netem nf_tables; do modprobe $module || exit; done'
    grep -q '^6\.12\.' out || fail "another kernel" ;;
headers) # packages of kernel headers make the folder of the modules, without modules
    expect_status 0 "$vm" -- uname -r
    folder=/lib/modules/$(cat out)
    [ ! -e "$folder" ] || { echo "skipped: $folder is there"; exit 0; }
    mkdir -p "$folder" || { echo "skipped: $folder cannot be made"; exit 0; }
    trap 'rm -rf "$work"; rmdir "$folder"' EXIT
    expect_status 0 "$vm" -- modprobe brd ;;
kernel_gone) # a version that the archive no longer has: the list of those that it has
    cp -r "$(dirname "$vm")" softroce
    sed -i 's/^pinned_6_12=.*/pinned_6_12=6.12.1+deb12/' softroce/kernel
    expect_status 200 env XDG_CACHE_HOME="$work/home" softroce/vm --kernel 6.12 -- true
    grep -q 'has these versions: .*6\.12\.[0-9.]*+deb12' err && grep -q 'does not have linux-image-6.12.1+deb12-amd64' err || fail "no list" ;;
fault) # faults in the kernel log are reported
    expect_status 0 "$vm" -- bash -c 'echo "BUG: of a test" >/dev/kmsg'
    grep -q "reported a fault" err && grep -q 'BUG: of a test' err || fail "not reported" ;;
resources) # the machine has the requested size, and uses the requested output folder
    expect_status 0 "$vm" --cpus 3 --accel tcg -- nproc
    [ "$(cat out)" = 3 ] || fail "three processors"
    export RCVERBS_VM_OUT=$work/elsewhere
    expect_status 0 "$vm" --cpus 1 --memory 1024 --accel tcg -- bash -c 'nproc; awk "/MemTotal/ { print int(\$2 / 1024) }" /proc/meminfo; echo kept >"$RCVERBS_VM_OUT/kept"'
    [ "$(sed -n 1p out)" = 1 ] || fail "processors"
    [ "$(sed -n 2p out)" -le 1024 ] && [ "$(sed -n 2p out)" -gt 700 ] || fail "memory"
    [ "$(cat elsewhere/kept)" = kept ] || fail "the output folder" ;;
as_it_comes) # output is passed on while the command runs
    { "$vm" -- bash -c 'echo early; sleep 5; echo late' & echo $! >pid; wait; } >out 2>err &
    for try in $(seq 300); do sleep 0.1; grep -q early out && break; done
    grep -q early out || fail "nothing came"
    grep -q late out && fail "it came all at once"
    wait
    grep -q late out || fail "the rest did not come" ;;
usable_device) # usable-device finds the guest's own device
    expect_status 0 "$vm" -- "$(dirname "$vm")/usable-device"
    [ "$(cat out)" = 'rxe0 10.0.0.1 fd00::1' ] || fail "the device" ;;
usage)
    expect_status 2 "$vm" --topology three -- true
    expect_status 2 "$vm" --kernel 5.10 -- true
    expect_status 2 "$vm" --memory much -- true
    expect_status 2 "$vm" --slow 4 -- true
    expect_status 2 "$vm" --steady --slow 11 -- true
    expect_status 2 "$vm" --steady --seed many -- true
    expect_status 2 "$vm" ;;
deterministic) # virtual time does not depend on the host's: idle time is skipped
    start=$SECONDS
    expect_status 0 "$vm" --deterministic -- sleep 60
    [ $((SECONDS - start)) -lt 55 ] || fail "sleeping took real time" ;;
steady) # the guest time of tests does not depend on the host's load
    program=$2
    spec='a batch*,a session*,atomics*,a fenced*,memory *,a message*,the rights*'
    # measured FILE: writes a line for each test: its guest time and its name.
    measured() {
        expect_status 0 "$vm" --steady --memory 4096 -- bash -c '"$1" "$2" "${2%/*}"/rdma-* && exec "$2" --apart "$3"' - "${vm%/vm}/into-memory" "$program" "$spec"
        sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: (.*[^.]) \.+ +Passed +([0-9.]+) sec$/\2 \1/p' out >"$1"
    }
    measured alone
    [ "$(wc -l <alone)" -ge 12 ] || fail "fewer than a dozen tests"
    for i in 1 2 3 4; do timeout 600 sh -c 'while :; do :; done' & done
    measured loaded
    # shellcheck disable=SC2046 # process ids
    kill $(jobs -p)
    paste -d' ' loaded alone | awk '
        { beside = $1; $1 = ""; alone = $(NF / 2 + 1); difference = beside - alone }
        difference > 0.02 + 0.1 * alone || -difference > 0.02 + 0.1 * alone { print beside " s beside load, alone and twice its name: " $0; bad = 1 }
        END { exit bad }
    ' || fail "guest times differ" ;;
rping)
    expect_status 0 "$vm" -- bash -c 'rping -s -a 10.0.0.1 -C 3 & for try in $(seq 20); do sleep 0.3; rping -c -a 10.0.0.1 -C 3 -v && exit 0; done; exit 1'
    grep -q 'rdma-ping-2' out || fail "no ping" ;;
ib_write_bw)
    expect_status 0 "$vm" -- bash -c 'ib_write_bw -d rxe0 -x 1 -n 100 -F >/dev/null & for try in $(seq 20); do sleep 0.5; ib_write_bw -d rxe0 -x 1 -n 100 -F 10.0.0.1 && exit 0; done; exit 1'
    grep -q 65536 out || fail "no result" ;;
pair) # the two devices communicate over a wire, on which packets can be lost
    cat >script <<'SCRIPT'
packets() { cat /sys/class/net/v0/statistics/tx_packets; }
# ping ADDRESS SECONDS TRIES: rping does not say when it listens, so a client may come too early.
ping() {
    rping -s -a $1 -C 2 >/dev/null & server=$!
    for try in $(seq $3); do sleep 0.3; timeout $2 rping -c -a $1 -C 2; r=$?; [ $r = 0 ] && break; done
    kill $server 2>/dev/null; wait $server 2>/dev/null; return $r
}
[ $(ls /sys/class/infiniband | wc -l) = 2 ] || exit 11
before=$(packets)
ping 10.0.1.1 20 20 || exit 12
[ $(packets) -gt $((before + 10)) ] || exit 13
ping fd00:1::1 20 20 || exit 14
# no_answer COMMAND…: a ping that has no answer yet when COMMAND says that its packets are lost.
no_answer() {
    rping -s -a 10.0.1.1 -C 2 >/dev/null & server=$!
    rping -c -a 10.0.1.1 -C 2 & client=$!
    for try in $(seq 600); do "$@" && break; sleep 0.1; done
    "$@" && kill -0 $client; r=$?
    kill $client $server 2>/dev/null; wait $client $server 2>/dev/null; return $r
}
has_dropped() { tc -s qdisc show dev v0 | grep -q 'dropped [1-9]'; }
tc qdisc add dev v0 root netem loss 100% || exit 15
no_answer has_dropped || exit 16
tc qdisc del dev v0 root
# nft acts on the packets, too.
nft 'add table ip t; add chain ip t c { type filter hook input priority 0; }; add rule ip t c udp dport 4791 counter drop' || exit 19
has_filtered() { nft list table ip t | grep -q 'packets [1-9]'; }
no_answer has_filtered || exit 20
nft 'delete table ip t'
ping 10.0.1.1 20 20 || exit 18
SCRIPT
    expect_status 0 "$vm" --topology pair -- bash "$work/script" ;;
*) fail "no case $1" ;;
esac
echo "passed"
