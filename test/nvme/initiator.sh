#!/usr/bin/env bash
# initiator.sh PROGRAMS [CASE… | ceph]: rdma-nvme under the Linux kernel's own initiator, inside the SoftRoCE virtual machine. Each case
# starts its own targets; a case that fails shows its commands. The report is like ctest's.
#
# The guest is one machine, so target and initiator share it. In the topology `pair` they have a device each, with a wire between
# them: the cases whose names begin with `wire_` run there, all others with one device. Those of disks in a Ceph cluster, which begin with
# `ceph_`, run with `ceph` instead of their names, or by name.
# Without pipefail: grep -q ends when it has found a line, and what it reads from then dies of SIGPIPE.
set -u
programs=$1
shift
nqn=nqn.2026-01.io.rcverbs:test
here=10.0.0.1
port=4420
work=$(mktemp -d)

# --- what cases are made of --------------------------------------------------------------------------------------------------------------

fail() {
    echo "failed: $*"
    for log in "$work"/serve*.log; do echo "--- ${log##*/}"; tail -n 20 "$log"; done
    dmesg | tail -n 12
    exit 1
}

# A case that this kernel cannot run; it does not count as passed.
skip() {
    echo "skipped: $*"
    exit 77
}

# wait_for SECONDS COMMAND…: repeats a command until it succeeds.
wait_for() {
    local tries=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# serve ARGUMENT…: starts a target, whose process is $target and whose output is in $log.
serve() {
    log=$work/serve$((++servers)).log
    "$programs/rdma-nvme" serve "$@" --port $port >"$log" 2>&1 &
    target=$!
    wait_for 10 grep -q 'on port' "$log" || fail "the target does not listen"
}
servers=0

says() { wait_for "${2:-10}" grep -qE -- "$1" "$log" || fail "the target does not say: $1"; }

end_target() {
    kill "${1:-$target}" 2>/dev/null
    wait "${1:-$target}" || fail "the target ended with status $?"
}

# The last line of the target's output that is an object: its counters, on SIGUSR1.
counter() {
    local before now
    before=$(grep -c '^{' "$log")
    kill -USR1 "$target"
    wait_for 5 eval "[ \$(grep -c '^{' '$log') -gt $before ]" || fail "no counters"
    now=$(grep '^{' "$log" | tail -n 1)
    sed -E "s/.*\"$1\":([0-9]+).*/\1/" <<<"$now"
}

connect() { nvme connect -t rdma -a "$here" -s $port -n $nqn --nr-io-queues=2 --reconnect-delay=1 "$@" || fail "connect $*"; }
# The disk of the first namespace, once it is there.
disk() {
    wait_for 10 test -b /dev/nvme0n1 || fail "no disk"
    udev=/dev/nvme0n1
}
disconnect() { nvme disconnect -n $nqn >/dev/null || fail "disconnect"; }
refused() {
    if nvme connect -t rdma -a "$here" -s $port "$@" 2>"$work/refused"; then fail "connected, although it must not: $*"; fi
}

verify_by_fio() { # verify_by_fio FILE ARGUMENT…: writes, reads back and compares
    local file=$1
    shift
    fio --allow_file_create=0 --name=verify --filename="$file" --rw=randwrite --verify=crc32c --verify_fatal=1 --ioengine=libaio --direct=1 \
        --output="$work/fio" "$@" || { cat "$work/fio"; fail "fio $*"; }
}

resources() { rdma resource show | sed -E 's/ctx [0-9]+//'; }

# --- cases -------------------------------------------------------------------------------------------------------------------------------

case_discovery_lists_the_subsystems() {
    serve --memory 16M --nqn $nqn
    nvme discover -t rdma -a $here -s $port >"$work/list" || fail discover
    grep -q "subnqn:  $nqn" "$work/list" || fail "the subsystem is not listed"
    grep -q "traddr:  $here" "$work/list" || fail "the address is not listed"
    nvme connect-all -t rdma -a $here -s $port || fail connect-all
    # The discovery controller had number 0 at that moment.
    wait_for 10 eval 'ls /dev/nvme*n1' || fail "no disk"
    nvme list | grep -q rcverbs || fail "nvme list"
    [ "$(counter controllers)" = 1 ] || fail "controllers: $(counter controllers)"
    disconnect
    # A host that leaves in order gets no advice.
    says 'controller [0-9]+ of host [^ ]+ ended\.$'
    end_target
}

case_a_host_at_a_link_local_address_is_told_it_without_a_scope() {
    local device address
    device=$(ip -o addr show to "$here" | awk '{ print $2; exit }')
    address=$(ip -6 -o addr show dev "$device" scope link | awk '{ sub("/.*", "", $4); print $4; exit }')
    [ -n "$address" ] || fail "no link-local address of $device"
    serve --memory 16M --nqn $nqn
    nvme discover -t rdma -a "$address%$device" -s $port >"$work/list" || fail discover
    grep -q "subnqn:  $nqn" "$work/list" || fail "the subsystem is not listed"
    grep -qx "traddr:  $address" "$work/list" || { cat "$work/list"; fail "the address is not listed without its scope"; }
    end_target
}

case_the_demo_shows_it_all() {
    RCVERBS_PRESET=$(basename "$(dirname "$programs")") apps/demo-nvme.sh --inside >"$work/said" 2>&1 || { cat "$work/said"; fail "the demo"; }
    grep -q 'the copy is the same' "$work/said" || fail "the demo compares nothing"
}

case_many_subsystems_are_found_and_connected() {
    local i
    for i in $(seq 20); do echo "{\"nqn\": \"nqn.many:$i\", \"namespaces\": [{\"memory\": \"1M\"}]},"; done >"$work/list"
    echo "{\"subsystems\": [$(cat "$work/list") {\"nqn\": \"nqn.many:21\", \"allow_hosts\": [\"nqn.host:other\"],
        \"namespaces\": [{\"memory\": \"1M\"}]}]}" >"$work/many.json"
    serve --config "$work/many.json"
    nvme discover -t rdma -a $here -s $port >"$work/found" || fail discover
    # The one that this host may not use is not for it to see; the discovery subsystem lists itself.
    [ "$(grep -c 'subnqn:  nqn.many' "$work/found")" = 20 ] || fail "found: $(grep subnqn "$work/found")"
    nvme connect-all -t rdma -a $here -s $port --nr-io-queues=1 || fail connect-all
    wait_for 30 eval '[ "$(ls -d /dev/nvme*n1 | wc -l)" = 20 ]' || fail "disks: $(ls /dev/nvme*)"
    [ "$(counter controllers)" = 20 ] || fail "controllers: $(counter controllers)"
    nvme disconnect-all || fail disconnect-all
    wait_for 20 eval '[ "$(counter queues)" = 0 ]' || fail "queues are left"
    end_target
}

case_a_host_finds_it_by_ipv6() {
    serve --memory 16M --nqn $nqn
    nvme discover -t rdma -a fd00::1 -s $port | grep -q 'adrfam:  ipv6' || fail "discover"
    here=fd00::1 connect
    disk
    verify_by_fio $udev --bs=4k --size=1M
    disconnect
    end_target
}

case_admin_commands_answer() {
    serve --memory 16M --nqn $nqn
    connect
    disk
    nvme id-ctrl /dev/nvme0 | grep -q "subnqn *: $nqn" || fail id-ctrl
    nvme id-ns $udev | grep -q 'nsze *: 0x1000$' || fail id-ns
    nvme ns-descs $udev | grep -q uuid || fail ns-descs
    nvme list-ns /dev/nvme0 | grep -q '0x1' || fail list-ns
    nvme smart-log /dev/nvme0 | grep -q 'available_spare.*100%' || fail smart-log
    nvme fw-log /dev/nvme0 >/dev/null || fail fw-log
    nvme changed-ns-list-log /dev/nvme0 >/dev/null || fail changed-ns-list-log
    # In the log of effects a command that is supported has bit 0.
    nvme get-log /dev/nvme0 -i 5 -l 4096 -b | od -An -tx4 -j$((1024 + 4)) -N4 | grep -q '00000003' || fail effects-log
    nvme get-feature /dev/nvme0 -f 7 | grep -q 0x00010001 || fail "get-feature 7"
    nvme get-feature /dev/nvme0 -f 0xf | grep -qi 1388 || fail "get-feature keep-alive: $(nvme get-feature /dev/nvme0 -f 0xf)"
    nvme set-feature /dev/nvme0 -f 0xb -v 0x100 >/dev/null || fail "set-feature 0xb"
    nvme get-feature /dev/nvme0 -f 0xb | grep -q 0x00000100 || fail "get-feature 0xb"
    said=$(nvme get-feature /dev/nvme0 -f 0x77 2>&1)
    grep -q 'Invalid Field' <<<"$said" || fail "an unknown feature has a value: $said"
    nvme error-log /dev/nvme0 | grep -q 'status_field.*: 0x2(Invalid Field' || fail "error-log: $(nvme error-log /dev/nvme0 | head -n 12)"
    disconnect
    end_target
}

case_transfers_of_every_size_arrive() {
    local block size
    for block in 512 4096; do
        serve --memory 64M --nqn $nqn --block-size $block
        connect
        disk
        for size in $block 4k 12k 64k 128k 1m; do verify_by_fio $udev --bs=$size --size=4M --iodepth=4; done
        disconnect
        end_target
    done
    # A file goes through staging memory, where memory is transferred directly.
    truncate -s 64M "$work/file"
    local method
    for method in io_uring threads; do
        serve "$work/file" --nqn $nqn --block-size 512 --file-io $method --threads 2
        connect
        disk
        for size in 512 4k 128k 1m; do verify_by_fio $udev --bs=$size --size=4M --iodepth=4; done
        disconnect
        end_target
    done
}

case_queues_of_every_size_work() {
    local depth
    serve --memory 64M --nqn $nqn
    for depth in 16 128; do
        connect --queue-size=$depth
        disk
        verify_by_fio $udev --bs=4k --size=8M --iodepth=128 --numjobs=1
        verify_by_fio $udev --bsrange=4k-64k --size=8M --iodepth=1
        disconnect
        wait_for 10 test ! -e /dev/nvme0n1
    done
    end_target
}

case_several_hosts_share_a_disk() {
    local host
    serve --memory 16M --nqn $nqn --threads 2
    # A host is who it says it is, so one machine can be three. (nvme-cli would refuse the second one itself.)
    for host in 1 2 3; do
        echo "transport=rdma,traddr=$here,trsvcid=$port,nqn=$nqn,nr_io_queues=1,hostnqn=nqn.host:$host,hostid=00000000-0000-4000-8000-00000000000$host" \
            >/dev/nvme-fabrics || fail "host $host"
    done
    wait_for 10 test -e /dev/nvme2 || fail "no third controller"
    [ "$(counter controllers)" = 3 ] || fail "controllers: $(counter controllers)"
    [ "$(counter queues)" = 6 ] || fail "queues: $(counter queues)"
    disk
    verify_by_fio $udev --bs=4k --size=4M --iodepth=8 --numjobs=2 --offset_increment=4M
    disconnect
    end_target
}

# check_filesystem TYPE: a tree, written, mounted again and compared.
check_filesystem() {
    local type=$1
    mkfs."$type" -q $udev || fail "mkfs.$type"
    mkdir -p "$work/mount"
    mount -t "$type" $udev "$work/mount" || fail "mount"
    cp -r lib "$work/mount/" || fail copy
    umount "$work/mount" || fail umount
    mount -t "$type" $udev "$work/mount" || fail "mount again"
    diff -r lib "$work/mount/lib" || fail "the tree differs"
    umount "$work/mount" || fail umount
}

case_file_systems_keep_their_files() {
    truncate -s 320M "$work/file"
    serve "$work/file" --nqn $nqn --threads 2
    connect
    disk
    check_filesystem ext4
    fsck.ext4 -fn $udev >"$work/fsck" 2>&1 || fail "fsck: $(cat "$work/fsck")"
    wipefs -qa $udev
    check_filesystem xfs
    xfs_repair -n $udev >"$work/fsck" 2>&1 || fail "xfs_repair: $(cat "$work/fsck")"
    disconnect
    end_target
}

case_discard_zeroes_flush_and_compare_do_what_they_say() {
    truncate -s 16M "$work/file"
    serve "$work/file" --nqn $nqn
    connect
    disk
    head -c 1M /dev/urandom >"$work/random"
    dd if="$work/random" of=$udev bs=1M oflag=direct status=none || fail write
    nvme flush $udev >/dev/null || fail flush
    cmp -n $((1 << 20)) "$work/random" "$work/file" || fail "not in the file"
    nvme compare $udev -s 0 -c 0 -z 4096 -d "$work/random" >/dev/null || fail "compare of equal bytes"
    if nvme compare $udev -s 1 -c 0 -z 4096 -d "$work/random" >"$work/compared" 2>&1; then fail "compare of other bytes"; fi
    grep -qi 'compare' "$work/compared" || fail "the status of compare: $(cat "$work/compared")"
    nvme write-zeroes $udev -s 0 -c 15 >/dev/null || fail write-zeroes
    cmp -n 65536 /dev/zero "$work/file" || fail "not zero after write-zeroes"
    blkdiscard -f -o 65536 -l 65536 $udev || fail blkdiscard
    cmp -n 131072 /dev/zero "$work/file" || fail "not zero after discard"
    blkdiscard -f -z -o 131072 -l 65536 $udev || fail "blkdiscard -z"
    cmp -n 196608 /dev/zero "$work/file" || fail "not zero after blkdiscard -z"
    cmp -n 4096 -i 196608 "$work/random" "$work/file" || fail "too much is gone"
    # FUA: direct and durable, in one command.
    dd if="$work/random" of=$udev bs=64k count=4 oflag=direct,dsync status=none || fail "dsync"
    disconnect
    end_target
}

# --- disks of NBD servers ------------------------------------------------------------------------------------------------------------------

# nbd_server COMMAND…: starts a server on $work/nbd, whose process is $nbd_server.
nbd_server() {
    rm -f "$work/nbd"
    "$@" >"$work/serve-nbd.log" 2>&1 &
    nbd_server=$!
    wait_for 30 test -S "$work/nbd" || fail "the NBD server does not listen"
}
kill_nbd_server() {
    kill -9 $nbd_server
    wait $nbd_server 2>/dev/null
}
nbd_uri() { echo "nbd+unix:///?socket=$work/nbd"; }

case_a_disk_of_qcow2_keeps_its_files() {
    qemu-img create -q -f qcow2 "$work/disk.qcow2" 320M || fail "qemu-img create"
    nbd_server qemu-nbd --socket="$work/nbd" --persistent --shared=8 --discard=unmap -f qcow2 "$work/disk.qcow2"
    serve --nbd "$(nbd_uri)" --nqn $nqn
    connect
    disk
    check_filesystem ext4
    fsck.ext4 -fn $udev >"$work/fsck" 2>&1 || fail "fsck: $(cat "$work/fsck")"
    wipefs -qa $udev
    verify_by_fio $udev --bs=4k --size=16M --iodepth=16 --verify_async=1
    blkdiscard -f $udev || fail blkdiscard
    cmp -n $((16 << 20)) /dev/zero $udev || fail "not zero after discard"
    disconnect
    end_target
    kill $nbd_server
    wait $nbd_server
    qemu-img check -q "$work/disk.qcow2" || fail "the image is damaged"
}

case_nothing_is_lost_with_a_killed_nbd_server() {
    local i
    truncate -s 64M "$work/file"
    nbd_server nbdkit --foreground --unix "$work/nbd" file "$work/file"
    serve --nbd "$(nbd_uri)" --write-through --nqn $nqn
    connect
    disk
    verify_by_fio $udev --bs=4k --size=32M --iodepth=8 --time_based=0 --loops=2 &
    local writer=$!
    for i in $(seq 5); do
        sleep 1
        kill_nbd_server
        nbd_server nbdkit --foreground --unix "$work/nbd" file "$work/file"
    done
    wait $writer || fail "fio: $(tail -n 20 "$work/fio")"
    says 'is away'
    says 'is back'
    disconnect
    end_target
}

# A path error is tried again by Linux' own multipath, also on the only path.
case_a_disk_waits_for_its_nbd_server_and_the_others_go_on() {
    nbd_server nbdkit --foreground --unix "$work/nbd" memory 16M
    printf '{"subsystems": [{"nqn": "%s", "namespaces": [{"id": 1, "nbd": "%s", "ana_group": 2}, {"id": 2, "memory": "16M"}]}]}' $nqn "$(nbd_uri)" >"$work/disks.json"
    serve --config "$work/disks.json"
    connect
    disk
    wait_for 10 test -b /dev/nvme0n2 || fail "no second disk"
    kill_nbd_server
    dd if=$udev of=/dev/null bs=4k count=1 iflag=direct status=none &
    local reader=$!
    # The other disk and the controller go on meanwhile.
    dd if=/dev/zero of=/dev/nvme0n2 bs=4k count=256 oflag=direct status=none || fail "the other disk"
    says 'is away'
    # Its group is not reached here, so the host does not even try.
    wait_for 10 eval 'cat /sys/class/nvme/nvme0/nvme0c0n1/ana_state | grep -qx inaccessible' || fail "states: $(grep . /sys/class/nvme/nvme0/*/ana_state)"
    grep -qx optimized /sys/class/nvme/nvme0/nvme0c0n2/ana_state || fail "the other disk: $(grep . /sys/class/nvme/nvme0/*/ana_state)"
    # Longer than the store waits, with a reload between.
    sleep 12
    kill -HUP "$target"
    sleep 13
    grep -qx inaccessible /sys/class/nvme/nvme0/nvme0c0n1/ana_state || fail "after a reload: $(grep . /sys/class/nvme/nvme0/*/ana_state)"
    kill -0 $reader 2>/dev/null || fail "the read has ended"
    nbd_server nbdkit --foreground --unix "$work/nbd" memory 16M
    wait $reader || fail "the read failed"
    [ "$(counter controllers_made)" = 1 ] || fail "the controller was lost"
    disconnect
    end_target
}

case_a_flush_fails_when_an_nbd_server_has_lost_what_was_written() {
    truncate -s 16M "$work/file"
    nbd_server nbdkit --foreground --unix "$work/nbd" file "$work/file"
    serve --nbd "$(nbd_uri)" --nqn $nqn
    connect
    disk
    dd if=/dev/zero of=$udev bs=4k count=1 oflag=direct,dsync status=none || fail "a flush of a server that is there"
    dd if=/dev/zero of=$udev bs=4k count=1 oflag=direct status=none || fail write
    kill_nbd_server
    nbd_server nbdkit --foreground --unix "$work/nbd" file "$work/file"
    wait_for 60 dd if=$udev of=/dev/null bs=4k count=1 iflag=direct status=none || fail "it does not come back"
    if nvme flush $udev >/dev/null 2>&1; then fail "a flush of a server that came later"; fi
    says 'may be lost with the server'
    kill -HUP "$target"
    says 'reloaded'
    wait_for 20 nvme flush $udev || fail "a flush of a store that was opened again"
    disconnect
    end_target
}

# --- disks in a Ceph cluster ---------------------------------------------------------------------------------------------------------------

rbd_of() { timeout 120 rbd -c "$cluster/ceph.conf" --id admin "$@" || fail "rbd $*"; }
serve_rbd() { serve --rbd "rbd/$1" --ceph-conf "$cluster/ceph.conf" --nqn $nqn "${@:2}"; }
kill_osd() {
    local osd
    osd=$(cat "$cluster/osd.0.pid")
    kill -9 "$osd"
    wait_for 10 eval "! kill -0 $osd" || fail "the OSD stays"
}

case_ceph_a_disk_keeps_its_files_and_follows_its_image() {
    rbd_of create --size 320 rbd/files
    serve_rbd files
    connect
    disk
    [ "$(cat /sys/block/nvme0n1/queue/optimal_io_size)" = $((4 << 20)) ] || fail "optimal size $(cat /sys/block/nvme0n1/queue/optimal_io_size)"
    check_filesystem ext4
    fsck.ext4 -fn $udev >"$work/fsck" 2>&1 || fail "fsck: $(cat "$work/fsck")"
    wipefs -qa $udev
    verify_by_fio $udev --bs=4k --size=8M --iodepth=16 --verify_async=1
    blkdiscard -f $udev || fail blkdiscard
    cmp -n $((8 << 20)) /dev/zero $udev || fail "not zero after discard"
    rbd_of resize --size 400 rbd/files >/dev/null 2>&1
    wait_for 30 eval "[ \$(blockdev --getsize64 $udev) = $((400 << 20)) ]" || fail "size $(blockdev --getsize64 $udev)"
    disconnect
    end_target
}

case_ceph_nothing_is_lost_with_a_killed_osd() {
    local i
    rbd_of create --size 64 rbd/osd
    serve_rbd osd
    connect
    disk
    verify_by_fio $udev --bs=4k --size=8M --iodepth=8 --verify_backlog=256 --loops=2 &
    local writer=$!
    for i in 1 2; do
        sleep 3
        kill_osd
        "$ceph_script" osd "$cluster" || fail "the OSD does not start"
    done
    wait $writer || fail "fio: $(tail -n 20 "$work/fio")"
    disconnect
    end_target
}

case_ceph_the_others_go_on_while_a_cluster_is_away() {
    rbd_of create --size 16 rbd/away
    printf '{"subsystems": [{"nqn": "%s", "namespaces": [{"id": 1, "rbd": "rbd/away", "ceph_conf": "%s", "ana_group": 2}, {"id": 2, "memory": "16M"}]}]}' \
        $nqn "$cluster/ceph.conf" >"$work/disks.json"
    serve --config "$work/disks.json"
    connect
    disk
    wait_for 10 test -b /dev/nvme0n2 || fail "no second disk"
    dd if=/dev/urandom of=$udev bs=4k count=1 oflag=direct status=none || fail "a write"
    kill_osd
    dd if=$udev of=/dev/null bs=4k count=1 iflag=direct status=none &
    local reader=$!
    dd if=/dev/zero of=/dev/nvme0n2 bs=4k count=256 oflag=direct status=none || fail "the other disk"
    says 'the Ceph cluster does not answer' 60
    wait_for 10 eval 'cat /sys/class/nvme/nvme0/nvme0c0n1/ana_state | grep -qx inaccessible' || fail "states: $(grep . /sys/class/nvme/nvme0/*/ana_state)"
    dd if=/dev/zero of=/dev/nvme0n2 bs=4k count=256 oflag=direct status=none || fail "the other disk, then"
    kill -0 $reader 2>/dev/null || fail "the read has ended"
    "$ceph_script" osd "$cluster" || fail "the OSD does not start"
    wait $reader || fail "the read failed"
    says 'the Ceph cluster answers again'
    [ "$(counter controllers_made)" = 1 ] || fail "the controller was lost"
    disconnect
    end_target
}

# Two gateways of one image, of which one is killed again and again; both are optimized, the host takes whichever is there.
case_ceph_a_pair_of_gateways_loses_nothing() {
    [ "$(cat /sys/module/nvme_core/parameters/multipath 2>/dev/null)" = Y ] || skip "this kernel has no multipath of NVMe"
    local i port_of=(4420 4421) ids=(1-100 101-200) pid=() active
    rbd_of create --size 64 rbd/pair
    for i in 0 1; do
        printf '{"subsystems": [{"nqn": "%s", "serial": "00000000000000000001", "namespaces": [{"rbd": "rbd/pair", "ceph_conf": "%s"}]}]}' \
            $nqn "$cluster/ceph.conf" >"$work/pair$i.json"
        port=${port_of[i]}
        serve --config "$work/pair$i.json" --controller-ids "${ids[i]}"
        pid[i]=$target
        nvme connect -t rdma -a $here -s "$port" -n $nqn --nr-io-queues=1 --reconnect-delay=1 --keep-alive-tmo=2 || fail "path $i"
    done
    disk
    verify_by_fio $udev --bs=4k --size=8M --iodepth=4 --verify_backlog=128 --time_based --runtime="${ceph_kills:-4}0" --verify_dump=0 &
    local writer=$!
    for i in $(seq "${ceph_kills:-4}"); do
        sleep 4
        active=$((i % 2))
        kill -KILL "${pid[active]}"
        wait "${pid[active]}" 2>/dev/null
        sleep 5
        port=${port_of[active]}
        serve --config "$work/pair$active.json" --controller-ids "${ids[active]}"
        pid[active]=$target
    done
    wait $writer || fail "fio: $(tail -n 20 "$work/fio")"
    nvme disconnect-all
    for i in 0 1; do end_target "${pid[i]}"; done
}

# --- discards and zeroes: of what the kernel carries them out on --------------------------------------------------------------------------

# zero_range FIRST-BYTE BYTES [blkdiscard's OPTION…]: on the disk, and in $work/expected.
zero_range() {
    local first=$1 bytes=$2
    shift 2
    blkdiscard -f "$@" -o "$first" -l "$bytes" $udev || fail "blkdiscard $* of $bytes bytes at $first"
    dd if=/dev/zero of="$work/expected" bs=512 seek=$((first / 512)) count=$((bytes / 512)) conv=notrunc status=none
}

# compare_disk [STORE]: the host reads what is expected, and so does who reads the file or device below.
compare_disk() {
    dd if=$udev bs=1M count=12 iflag=direct status=none | cmp - "$work/expected" || fail "the host reads something else"
    [ $# = 0 ] || cmp -n $((12 << 20)) "$1" "$work/expected" || fail "$1 has something else"
}

# check_zeroing [STORE]: of the disk of a target that serves STORE, 64 MiB.
check_zeroing() {
    local block
    connect
    disk
    block=$(blockdev --getss $udev)
    head -c 12M /dev/urandom >"$work/expected"
    dd if="$work/expected" of=$udev bs=1M oflag=direct status=none || fail write
    # Also a part of a page, where blocks are smaller.
    zero_range $((1 << 20)) $((2 << 20))
    zero_range $((5 << 20)) $((2 << 20)) -z
    zero_range $(((9 << 20) + block)) $((1 << 20))
    zero_range $(((10 << 20) + 2 * block)) $block -z
    compare_disk "$@"
    # What was discarded is written again, and the last block can be discarded as well.
    dd if="$work/expected" of=$udev bs=1M count=2 oflag=direct status=none || fail "write again"
    zero_range 0 $block
    compare_disk "$@"
    blkdiscard -f -o $(((64 << 20) - block)) -l $block $udev || fail "the last block"

    mkfs.ext4 -E discard $udev >"$work/mkfs" 2>&1 || { cat "$work/mkfs"; fail mkfs; }
    mkdir -p "$work/mount"
    mount $udev "$work/mount" || fail mount
    head -c 8M /dev/urandom >"$work/kept"
    cp "$work/kept" "$work/mount/kept" && head -c 24M /dev/urandom >"$work/mount/removed" && sync -f "$work/mount" || fail copy
    rm "$work/mount/removed"
    sync -f "$work/mount"
    fstrim -v "$work/mount" | tee "$work/trimmed" | grep -q 'trimmed' || fail fstrim
    umount "$work/mount"
    mount $udev "$work/mount" || fail "mount again"
    cmp "$work/kept" "$work/mount/kept" || fail "fstrim took a file"
    umount "$work/mount"
    fsck.ext4 -fn $udev >"$work/fsck" 2>&1 || { cat "$work/fsck"; fail fsck; }
    [ "$(counter failed_commands)" = 0 ] || fail "commands failed: $(counter failed_commands)"
    [ "$(counter store_failures)" = 0 ] || fail "the store failed: $(counter store_failures)"
    disconnect
    wait_for 10 test ! -e /dev/nvme0n1
}

# check_zeroing_of STORE [ARGUMENT…]: by each way to write it.
check_zeroing_of() {
    local method
    for method in threads io_uring; do
        serve "$@" --nqn $nqn --file-io $method
        check_zeroing "$1"
        end_target
    done
}

# blocks_of FILE: of 512 bytes that it takes.
blocks_of() { stat -c %b "$1"; }

case_zeroing_memory() {
    serve --memory 64M --nqn $nqn
    check_zeroing
    end_target
}

case_zeroing_a_file() {
    truncate -s 64M "$work/file"
    check_zeroing_of "$work/file"
    # fstrim has freed what was removed.
    [ "$(blocks_of "$work/file")" -lt $((24 << 11)) ] || fail "the file has $(blocks_of "$work/file") blocks"
}

case_zeroing_a_file_of_a_file_system_without_holes() {
    mkdir -p "$work/plain"
    mount -t ramfs none "$work/plain" || fail ramfs
    truncate -s 64M "$work/plain/file"
    check_zeroing_of "$work/plain/file" --block-size 512
    umount "$work/plain"
}

# zero_loop FILE [losetup's OPTION…]: serves a loop device of it.
zero_loop() {
    local file=$1 loop
    shift
    modprobe loop
    loop=$(losetup --find --show "$@" "$file") || fail losetup
    check_zeroing_of "$loop"
    serve "$loop" --nqn $nqn
    connect
    disk
    dd if=/dev/urandom of=$udev bs=1M count=32 oflag=direct status=none || fail write
    nvme flush $udev >/dev/null || fail flush
    before=$(blocks_of "$file")
    blkdiscard -f $udev || fail "blkdiscard of all"
    nvme flush $udev >/dev/null || fail flush
    after=$(blocks_of "$file")
    cmp -n $((64 << 20)) /dev/zero "$loop" || fail "not all is zero"
    disconnect
    end_target
    losetup --detach "$loop"
}

case_zeroing_a_loop_device_makes_its_file_smaller() {
    local before after size
    # Linux 6.12 discards nothing of a loop device any more when a write zeroes has met a file system without FALLOC_FL_ZERO_RANGE, such as tmpfs.
    modprobe -rq brd; modprobe brd rd_nr=1 rd_size=131072
    mkfs.ext4 -q /dev/ram0 && mkdir -p "$work/below" && mount /dev/ram0 "$work/below" || fail mount
    for size in 512 4096; do
        truncate -s 64M "$work/below/file"
        zero_loop "$work/below/file" --sector-size $size
        [ "$before" -ge $((32 << 11)) ] && [ "$after" -lt $((1 << 11)) ] || fail "the file had $before blocks, and has $after"
        rm "$work/below/file"
    done
    umount "$work/below"
}

case_zeroing_a_loop_device_on_a_file_system_without_holes() {
    local before after
    mkdir -p "$work/plain"
    mount -t ramfs none "$work/plain" || fail ramfs
    truncate -s 64M "$work/plain/file"
    zero_loop "$work/plain/file"
    umount "$work/plain"
}

case_zeroing_a_ram_disk() {
    modprobe -rq brd; modprobe brd rd_nr=1 rd_size=65536
    check_zeroing_of /dev/ram0
    serve /dev/ram0 --nqn $nqn --direct
    check_zeroing /dev/ram0
    end_target
}

# zero_null_blk DISCARD
zero_null_blk() {
    local at=/sys/kernel/config/nullb/zeroed
    modprobe null_blk nr_devices=0
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    mkdir $at || fail null_blk
    echo 64 >$at/size && echo 4096 >$at/blocksize && echo 1 >$at/memory_backed && echo "$1" >$at/discard && echo 1 >$at/power || fail null_blk
    wait_for 10 test -b /dev/zeroed || fail "no device"
    check_zeroing_of /dev/zeroed
    rmdir $at
}
case_zeroing_a_null_block_device() { zero_null_blk 0; }
case_zeroing_a_null_block_device_with_discard() { zero_null_blk 1; }

case_zeroing_a_device_that_is_mounted_as_well() {
    modprobe -rq brd; modprobe brd rd_nr=1 rd_size=65536
    # The file system has the first 16 MiB.
    mkfs.ext4 -q /dev/ram0 16M && mkdir -p "$work/below" && mount /dev/ram0 "$work/below" || fail mount
    local method at=$((32 << 20))
    for method in threads io_uring; do
        serve /dev/ram0 --nqn $nqn --shared --file-io $method
        connect
        disk
        head -c 1M /dev/urandom >"$work/random"
        for how in '' -z; do
            dd if="$work/random" of=$udev bs=1M seek=32 oflag=direct status=none || fail write
            blkdiscard -f $how -o $((at + 65536)) -l 524288 $udev || fail "blkdiscard $how"
            cp "$work/random" "$work/expected"
            dd if=/dev/zero of="$work/expected" bs=64k seek=1 count=8 conv=notrunc status=none
            dd if=$udev bs=1M skip=32 count=1 iflag=direct status=none | cmp - "$work/expected" || fail "something else after blkdiscard $how"
        done
        [ "$(counter store_failures)" = 0 ] || fail "the store failed"
        disconnect
        wait_for 10 test ! -e /dev/nvme0n1
        end_target
    done
    umount "$work/below"
}

case_zeroing_a_device_after_a_reload() {
    modprobe -rq brd; modprobe brd rd_nr=1 rd_size=65536
    configure() { echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"namespaces\": [{\"file\": \"/dev/ram0\", \"uuid\": \"8e6c30e2-2f6e-4c52-9d2f-0a6a3ffb6a12\"$1}]}]}" >"$work/disks.json"; }
    configure ', "read_only": true'
    serve --config "$work/disks.json"
    local how reloads=0
    for how in '' ', "shared": true' ''; do
        configure "$how"
        kill -HUP "$target"
        reloads=$((reloads + 1))
        wait_for 10 eval "[ \$(grep -c '^reloaded' '$log') = $reloads ]" || fail "no reload"
        check_zeroing /dev/ram0
    done
    end_target
}

case_a_disk_has_the_block_size_of_its_image() {
    truncate -s 64M "$work/file"
    # A partition table in blocks of 512 bytes, and 700 bytes behind the last block.
    printf '\x55\xaa' | dd of="$work/file" bs=1 seek=510 conv=notrunc status=none
    truncate -s $(((64 << 20) + 700)) "$work/file"
    serve "$work/file" --nqn $nqn
    says 'the last 188 bytes of the file are no whole block'
    connect
    disk
    [ "$(blockdev --getss $udev)" = 512 ] || fail "blocks of $(blockdev --getss $udev) bytes"
    disconnect
    end_target
    # A device has its own: loop devices of 512 and of 4096 bytes.
    local size loop
    modprobe loop
    for size in 512 4096; do
        loop=$(losetup --find --show --sector-size $size "$work/file") || fail losetup
        serve "$loop" --nqn $nqn
        connect
        disk
        [ "$(blockdev --getss $udev)" = $size ] || fail "blocks of $(blockdev --getss $udev) bytes, not $size"
        disconnect
        end_target
        losetup --detach "$loop"
    done
}

case_blocks_that_are_too_small_for_direct_io_are_refused() {
    local at=/sys/kernel/config/nullb/large_blocks
    modprobe null_blk nr_devices=0
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    mkdir $at && echo 64 >$at/size && echo 4096 >$at/blocksize && echo 1 >$at/memory_backed && echo 1 >$at/power || fail null_blk
    wait_for 10 test -b /dev/large_blocks || fail "no device"
    mkfs.ext4 -q -O ^has_journal /dev/large_blocks || fail mkfs
    mkdir -p "$work/large"
    mount /dev/large_blocks "$work/large" || fail mount
    # Linux reads a hole of any alignment: only a write would fail.
    truncate -s 16M "$work/large/disk"
    timeout 10 "$programs/rdma-nvme" serve "$work/large/disk" --nqn $nqn --port $port --direct --block-size 512 >"$work/refused" 2>&1
    [ $? = 2 ] || { cat "$work/refused"; fail "not refused"; }
    grep -q 'has no direct I/O of blocks of 512 bytes, only of 4096' "$work/refused" || { cat "$work/refused"; fail "another reason"; }
    serve "$work/large/disk" --nqn $nqn --direct
    connect
    disk
    verify_by_fio $udev --bs=4k --size=1M
    disconnect
    end_target
    umount "$work/large"
    rmdir $at
}

case_two_targets_are_two_paths_of_one_disk() {
    local uuid=8e6c30e2-2f6e-4c52-9d2f-0a6a3ffb6a11 number first second
    truncate -s 16M "$work/file"
    for number in 1 2; do
        echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"serial\": \"00000000000000000001\",
            \"namespaces\": [{\"file\": \"$work/file\", \"shared\": true, \"uuid\": \"$uuid\"}]}]}" >"$work/path$number.json"
    done
    serve --config "$work/path1.json" --controller-ids 1-100
    first=$target
    port=4421
    serve --config "$work/path2.json" --controller-ids 101-200
    second=$target
    nvme connect -t rdma -a $here -s 4420 -n $nqn --nr-io-queues=1 || fail "the first path"
    nvme connect -t rdma -a $here -s 4421 -n $nqn --nr-io-queues=1 || fail "the second path"
    [ "$(cat /sys/class/nvme/nvme1/cntlid)" = 101 ] || fail "cntlid $(cat /sys/class/nvme/nvme1/cntlid)"
    disk
    [ "$(cat /sys/block/nvme0n1/uuid)" = $uuid ] || fail "uuid $(cat /sys/block/nvme0n1/uuid)"
    if [ "$(cat /sys/module/nvme_core/parameters/multipath 2>/dev/null)" = Y ]; then
        # One disk, which goes on over the other path when one ends.
        wait_for 10 eval '[ "$(ls -d /sys/block/nvme0n* /sys/block/nvme1n* 2>/dev/null | grep -vc "c[0-9]n")" = 1 ]' || fail "more than one disk"
        kill -KILL $first
        wait $first 2>/dev/null
        verify_by_fio $udev --bs=4k --size=1M
    else
        end_target $first
    fi
    nvme disconnect-all
    end_target $second
}

# ana_states: of the paths of the first disk, by the numbers of their controllers.
ana_states() { for path in /sys/class/nvme/nvme*/nvme*c*n1; do echo "$(cat "${path%/*}/cntlid"):$(cat "$path/ana_state")"; done | sort -n | tr '\n' ' '; }
# write_paths STATE STATE: the configurations of two gateways, and what they say of group 5.
write_paths() {
    local number=0 state
    for state in "$@"; do
        number=$((number + 1))
        echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"serial\": \"00000000000000000001\", \"ana\": {\"5\": \"$state\"},
            \"other_addresses\": [\"10.0.0.1:$((4422 - number))\"], \"namespaces\": [
            {\"file\": \"$work/file\", \"shared\": true, \"ana_group\": 5, \"uuid\": \"00112233-4455-6677-8899-aabbccddeeff\"}]}]}" >"$work/path$number.json"
    done
}
case_a_pair_of_gateways_takes_over_and_fails_back() {
    [ "$(cat /sys/module/nvme_core/parameters/multipath 2>/dev/null)" = Y ] || skip "this kernel has no multipath of NVMe"
    local first second first_log before
    truncate -s 64M "$work/file"
    write_paths optimized non-optimized
    serve --config "$work/path1.json" --controller-ids 1-100
    first=$target first_log=$log
    port=4421
    serve --config "$work/path2.json" --controller-ids 101-200
    second=$target
    nvme connect -t rdma -a $here -s 4420 -n $nqn --nr-io-queues=1 || fail "the first path"
    nvme connect -t rdma -a $here -s 4421 -n $nqn --nr-io-queues=1 || fail "the second path"
    disk
    wait_for 10 eval '[ "$(ana_states)" = "1:optimized 101:non-optimized " ]' || fail "states: $(ana_states)"
    # Either one names both.
    for port in 4420 4421; do
        nvme discover -t rdma -a $here -s "$port" >"$work/discovered" 2>&1 || fail "discover: $(cat "$work/discovered")"
        [ "$(sed -n 's/^trsvcid: *//p' "$work/discovered" | sort | tr -d ' ' | tr '\n' ' ')" = "$(printf '%s\n' 4420 4421 "$port" | sort | tr '\n' ' ')" ] ||
            fail "discovered: $(cat "$work/discovered")"
    done
    verify_by_fio $udev --bs=4k --size=1M
    [ "$(counter writes)" = 0 ] || fail "the path that is not optimized was used"
    # While a host writes: the second one takes over, the first one becomes inaccessible, then back.
    verify_by_fio $udev --bs=4k --size=32M --iodepth=8 --verify_backlog=64 &
    local writer=$!
    sleep 1
    write_paths inaccessible optimized
    kill -HUP $second
    kill -HUP $first
    wait_for 10 eval '[ "$(ana_states)" = "1:inaccessible 101:optimized " ]' || fail "states: $(ana_states)"
    wait_for 20 eval '[ "$(counter writes)" -gt 0 ]' || fail "the second path is not used"
    # The one that served is away for a while, and is back; nobody is inaccessible everywhere.
    write_paths optimized inaccessible
    kill -HUP $first
    kill -HUP $second
    wait_for 10 eval '[ "$(ana_states)" = "1:optimized 101:inaccessible " ]' || fail "states: $(ana_states)"
    wait $writer || fail "fio: $(tail -n 20 "$work/fio")"
    before=$(counter writes)
    verify_by_fio $udev --bs=4k --size=1M
    [ "$(counter writes)" = "$before" ] || fail "the second path is still used"
    # No path: what is written waits, and goes on.
    write_paths inaccessible inaccessible
    kill -HUP $first
    wait_for 10 eval '[ "$(ana_states)" = "1:inaccessible 101:inaccessible " ]' || fail "states: $(ana_states)"
    dd if=/dev/zero of=$udev bs=4k count=1 oflag=direct status=none &
    writer=$!
    sleep 2
    kill -0 $writer 2>/dev/null || fail "written without a path"
    write_paths inaccessible optimized
    kill -HUP $second
    wait $writer || fail "the write that waited failed"
    grep -q '"ana" of .* changed' "$first_log" || fail "the change is not in the log"
    nvme disconnect-all
    end_target $first
    end_target $second
}

# connect_as NUMBER: as a host of its own. Linux has the disks of all of them under one name, so commands go by the controller's path.
connect_as() {
    echo "transport=rdma,traddr=$here,trsvcid=$port,nqn=$nqn,nr_io_queues=1,hostnqn=nqn.host:$1,hostid=00000000-0000-4000-8000-00000000000$1" >/dev/nvme-fabrics ||
        fail "host $1"
}
# resv HOST COMMAND…: a reservation command of a host.
resv() { nvme "resv-$2" "/dev/ng$(($1 - 1))n1" "${@:3}" >"$work/resv" 2>&1; }
case_a_host_that_reserves_a_disk_shuts_the_others_out() {
    # With multipath, two hosts on one machine have one disk.
    if [ "$(cat /sys/module/nvme_core/parameters/multipath 2>/dev/null)" = Y ]; then
        modprobe -r nvme-rdma nvme-fabrics nvme-core && modprobe nvme-core multipath=N && modprobe nvme-rdma || fail "nvme-core stays loaded"
        trap 'nvme disconnect-all; modprobe -r nvme-rdma nvme-fabrics nvme-core; modprobe nvme-rdma' EXIT
    fi
    printf '{"subsystems": [{"nqn": "%s", "namespaces": [{"memory": "16M", "reservations": "%s/kept", "uuid": "00112233-4455-6677-8899-aabbccddeeff"}]}]}' $nqn "$work" >"$work/disks.json"
    serve --config "$work/disks.json"
    connect_as 1
    connect_as 2
    wait_for 10 test -b /dev/nvme1n1 || fail "no second disk"
    write() { dd if=/dev/zero of="/dev/nvme$(($1 - 1))n1" bs=4k count=1 oflag=direct status=none 2>/dev/null; }
    nvme id-ns /dev/nvme0n1 | grep -q 'rescap *: 0x7f' || fail "$(nvme id-ns /dev/nvme0n1 | grep rescap)"
    resv 1 register --nrkey=0x11 --rrega=0 --cptpl=3 || fail "register: $(cat "$work/resv")"
    resv 1 acquire --crkey=0x11 --rtype=1 --racqa=0 || fail "acquire: $(cat "$work/resv")"
    write 1 || fail "the holder cannot write"
    if write 2; then fail "another host writes"; fi
    dd if=/dev/nvme1n1 of=/dev/null bs=4k count=1 iflag=direct status=none || fail "another host cannot read"
    resv 2 report --eds || fail "report: $(cat "$work/resv")"
    grep -q 'regctl *: 1' "$work/resv" && grep -q 'rkey *: 11' "$work/resv" || fail "report: $(cat "$work/resv")"
    if resv 2 acquire --crkey=0x22 --rtype=1 --racqa=0; then fail "acquired without a registration"; fi
    # Over a restart of the target, which was killed.
    kill -9 "$target"
    wait "$target" 2>/dev/null
    serve --config "$work/disks.json"
    wait_for 60 write 1 || fail "the holder cannot write after a restart"
    wait_for 30 grep -q live /sys/class/nvme/nvme1/state || fail "the second host does not come back"
    if write 2; then fail "another host writes after a restart"; fi
    # The second host takes over, and the first one is out; then all is cleared.
    resv 2 register --nrkey=0x22 --rrega=0 || fail "register: $(cat "$work/resv")"
    resv 2 acquire --crkey=0x22 --prkey=0x11 --rtype=2 --racqa=2 || fail "preempt: $(cat "$work/resv")"
    write 2 || fail "the new holder cannot write"
    if write 1; then fail "the old holder writes"; fi
    if dd if=/dev/nvme0n1 of=/dev/null bs=4k count=1 iflag=direct status=none 2>/dev/null; then fail "the old holder reads"; fi
    resv 2 release --crkey=0x22 --rtype=2 --rrela=0 || fail "release: $(cat "$work/resv")"
    write 1 || fail "nobody holds it, and it cannot be written"
    disconnect
    end_target
}

case_reading_ahead_is_served() {
    truncate -s 64M "$work/file"
    head -c 16M /dev/urandom | dd of="$work/file" conv=notrunc status=none
    serve "$work/file" --nqn $nqn
    connect
    disk
    # Through the host's page cache: Linux marks what it reads ahead by a hint in the command.
    blockdev --setra 1024 $udev
    head -c 16M $udev | cmp -n $((16 << 20)) - "$work/file" || fail "other bytes"
    [ "$(counter failed_commands)" = 0 ] || fail "commands failed: $(counter failed_commands)"
    disconnect
    end_target
}

case_a_host_that_removes_many_namespaces_is_not_silent() {
    local i
    for i in $(seq 59); do echo "{\"id\": $i, \"memory\": \"64K\"},"; done >"$work/list"
    echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"namespaces\": [$(cat "$work/list") {\"id\": 60, \"memory\": \"64K\"}]}]}" >"$work/many.json"
    serve --config "$work/many.json"
    connect --keep-alive-tmo=5
    wait_for 60 test -b /dev/nvme0n60 || fail "no disk 60"
    # Linux sends no keep-alive meanwhile.
    disconnect
    wait_for 20 eval '[ "$(counter queues)" = 0 ]' || fail "queues are left"
    [ "$(counter keep_alive_expired)" = 0 ] || fail "the host was taken for dead"
    end_target
}

# serve_with_lockable KIB ARGUMENT…: starts a target as a user who may lock that much; root may lock what it likes.
serve_with_lockable() {
    local kib=$1
    shift
    log=$work/serve$((++servers)).log
    cp "$programs/rdma-nvme" "$work/" && chmod 755 "$work" "$work/rdma-nvme"
    (ulimit -l "$kib"; exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$work/rdma-nvme" serve "$@" --port $port) >"$log" 2>&1 &
    target=$!
}

case_a_target_that_may_not_lock_what_it_needs_does_not_start() {
    local kib
    ends() {
        wait_for 20 eval "! kill -0 $target" || fail "the target serves"
        wait $target
        [ $? = 1 ] || fail "another status than 1"
    }
    for kib in 64 8192; do
        serve_with_lockable $kib --memory 64M --nqn $nqn
        ends
        grep -qE "the process may lock $kib KiB.*RLIMIT_MEMLOCK.* locked [0-9]+ KiB.*LimitMEMLOCK" "$log" || fail "does not say what is missing"
        if grep -q 'serving' "$log"; then fail "serves with $kib KiB"; fi
    done
    serve_with_lockable 8192 --memory 1M --max-queues 256 --nqn $nqn
    ends
    grep -q 'or lower --max-queues' "$log" || fail "does not say what to lower"
}

case_with_little_lockable_memory_fewer_queues_are_served_and_no_command_fails() {
    local i list='' writers=()
    for i in 1 2 3 4 5; do
        truncate -s 8M "$work/disk$i"
        list+="{\"nqn\": \"$nqn$i\", \"namespaces\": [{\"file\": \"$work/disk$i\"}]},"
    done
    chown 65534 "$work"/disk*
    echo "{\"subsystems\": [${list%,}]}" >"$work/disks.json"
    serve_with_lockable 8192 --config "$work/disks.json"
    wait_for 10 grep -q 'on port' "$log" || fail "the target does not listen"
    says 'serves at most 8 queues instead of 256.* 8192 KiB \(RLIMIT_MEMLOCK\)'
    # A host of this machine has two queues: one of administration, and one for I/O.
    for i in 1 2 3 4; do
        nvme connect -t rdma -a $here -s $port -n $nqn$i --nr-io-queues=1 --hostnqn=nqn.host:$i --hostid=00000000-0000-4000-8000-00000000000$i || fail "host $i"
    done
    refused -n ${nqn}5 --nr-io-queues=1 --hostnqn=nqn.host:5 --hostid=00000000-0000-4000-8000-000000000005
    wait_for 20 eval '[ "$(ls -d /dev/nvme[0-3]n1 | wc -l)" = 4 ]' || fail "disks: $(ls /dev/nvme*)"
    for i in 0 1 2 3; do
        dd if=/dev/urandom of=/dev/nvme${i}n1 bs=1M count=8 oflag=direct status=none &
        writers+=($!)
    done
    for i in "${writers[@]}"; do wait "$i" || fail "a write failed"; done
    if grep -q 'fail' "$log"; then fail "commands fail"; fi
    [ "$(counter failed_commands)" = 0 ] || fail "failed commands: $(counter failed_commands)"
    end_target
}

case_hosts_are_served_although_nobody_reads_the_output() {
    log=$work/serve-unread.log
    # A pipe that is full from the beginning.
    python3 - "$programs/rdma-nvme" $port $nqn >"$log" 2>&1 <<'PY' &
import fcntl, os, subprocess, sys
r, w = os.pipe()
fcntl.fcntl(w, fcntl.F_SETPIPE_SZ if hasattr(fcntl, "F_SETPIPE_SZ") else 1031, 4096)
os.set_blocking(w, False)
try:
    while True: os.write(w, b"x")
except BlockingIOError:
    os.set_blocking(w, True)
p = subprocess.Popen([sys.argv[1], "serve", "--memory", "16M", "--port", sys.argv[2], "--nqn", sys.argv[3]], stdout=w, stderr=w)
print("pid", p.pid, flush=True)
sys.exit(p.wait())
PY
    target=$!
    wait_for 10 eval "nvme discover -t rdma -a $here -s $port >/dev/null" || fail "it does not serve"
    connect
    disk
    verify_by_fio $udev --bs=4k --size=1M
    disconnect
    kill "$(sed -n 's/^pid //p' "$log")"
    wait $target || fail "the target ended with status $?"
}

case_a_disk_that_is_read_only_refuses_writes() {
    truncate -s 16M "$work/file"
    serve "$work/file" --nqn $nqn --read-only
    connect
    disk
    [ "$(blockdev --getro $udev)" = 1 ] || fail "the host takes it for writable"
    blockdev --setrw $udev
    if nvme write-zeroes $udev -s 0 -c 0 >"$work/said" 2>&1; then fail "written"; fi
    disconnect
    end_target
}

case_namespaces_come_go_and_grow_while_hosts_are_connected() {
    truncate -s 16M "$work/one"
    truncate -s 16M "$work/two"
    configure() { echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"namespaces\": [$1]}]}" >"$work/disks.json"; }
    local one="{\"id\": 1, \"file\": \"$work/one\"}" two="{\"id\": 2, \"file\": \"$work/two\"}"
    configure "$one"
    serve --config "$work/disks.json"
    connect
    disk
    configure "$one, $two"
    kill -HUP "$target"
    wait_for 10 test -b /dev/nvme0n2 || fail "the second disk does not appear"
    truncate -s 32M "$work/one"
    kill -HUP "$target"
    wait_for 10 eval "[ \$(blockdev --getsize64 /dev/nvme0n1) = $((32 << 20)) ]" || fail "the disk does not grow"
    configure "$one"
    kill -HUP "$target"
    wait_for 10 test ! -e /dev/nvme0n2 || fail "the second disk does not go"
    verify_by_fio $udev --bs=4k --size=1M
    # The same disk, in another way: the target's own lock does not keep it out.
    configure "{\"id\": 1, \"file\": \"$work/one\", \"read_only\": true}"
    kill -HUP "$target"
    wait_for 10 grep -qx 1 /sys/block/nvme0n1/ro || fail "the disk can be written"
    configure "{\"id\": 1, \"file\": \"$work/one\", \"shared\": true}"
    kill -HUP "$target"
    wait_for 10 grep -qx 0 /sys/block/nvme0n1/ro || fail "the disk cannot be written"
    verify_by_fio $udev --bs=4k --size=1M
    disconnect
    end_target
}

case_a_disk_that_is_replaced_is_never_written_by_its_old_hosts() {
    truncate -s 64M "$work/file"
    echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"namespaces\": [{\"id\": 1, \"file\": \"$work/file\"}]}]}" >"$work/disks.json"
    serve --config "$work/disks.json"
    connect
    disk
    local round before writer
    for round in 1 2 3; do
        disk
        before=$(cat /sys/block/nvme0n1/wwid)
        fio --allow_file_create=0 --name=writer --filename=$udev --rw=randwrite --bs=4k --iodepth=16 --ioengine=libaio --direct=1 --time_based --runtime=60 \
            --output="$work/fio" >/dev/null 2>&1 &
        writer=$!
        wait_for 10 eval "! cmp -s -n $((64 << 20)) /dev/zero '$work/file'" || fail "nothing is written"
        mv "$work/file" "$work/old$round"
        truncate -s 64M "$work/file"
        kill -HUP "$target"
        if wait $writer; then fail "the writer does not notice"; fi
        wait_for 20 eval "[ -e /sys/block/nvme0n1/wwid ] && [ \"\$(cat /sys/block/nvme0n1/wwid)\" != '$before' ]" || fail "the new disk does not appear"
        cmp -n $((64 << 20)) /dev/zero "$work/file" || fail "the new disk was written in round $round"
        [ "$(grep -cxF "namespace 1 of $nqn is another disk now." "$log")" = $round ] || fail "the target does not say so in round $round"
    done
    disconnect
    end_target
}

case_a_device_of_the_device_mapper_is_known_by_its_uuid() {
    modprobe -rq brd; modprobe brd rd_nr=1 rd_size=32768
    modprobe dm-mod
    # identity UUID: of a device that is always called mapped.
    identity() {
        dmsetup --noudevsync create mapped --uuid "$1" --table '0 65536 linear /dev/ram0 0' || fail "dmsetup create"
        dmsetup mknodes mapped
        serve /dev/mapper/mapped --nqn $nqn >/dev/null
        connect
        disk
        cat /sys/block/nvme0n1/wwid
        disconnect
        wait_for 10 test ! -e /dev/nvme0n1
        end_target
        dmsetup --noudevsync remove --retry mapped || fail "dmsetup remove"
    }
    identity LVM-one >"$work/one"
    identity LVM-two >"$work/two"
    identity LVM-one >"$work/again"
    cmp "$work/one" "$work/again" || fail "another disk after a restart"
    if cmp -s "$work/one" "$work/two"; then fail "the same disk although its UUID is another"; fi
}

case_a_reload_with_an_error_changes_nothing() {
    truncate -s 16M "$work/one"
    truncate -s 16M "$work/two"
    configure() { echo "{\"subsystems\": [{\"nqn\": \"$nqn\"$2, \"namespaces\": [$1]}]}" >"$work/disks.json"; }
    configure "{\"id\": 1, \"file\": \"$work/one\"}" ''
    serve --config "$work/disks.json"
    connect
    disk
    # A file that is missing, a file that is given twice, a secret that is none.
    configure "{\"id\": 1, \"file\": \"$work/on\"}" ''
    kill -HUP "$target"
    says "^rdma-nvme: nothing was changed: .*$work/on.*No such file"
    configure "{\"id\": 1, \"file\": \"$work/one\"}, {\"id\": 2, \"file\": \"$work/one\"}" ''
    kill -HUP "$target"
    says "^rdma-nvme: nothing was changed: .*$work/one is in use"
    configure "{\"id\": 1, \"file\": \"$work/one\"}" ', "secrets": [{"host": "nqn.x:y", "secret": "none"}]'
    kill -HUP "$target"
    says '^rdma-nvme: nothing was changed: .*"secret" is not of the form DHHC-1'
    verify_by_fio $udev --bs=4k --size=1M
    [ -e /dev/nvme0n1 ] && [ "$(counter controllers)" = 1 ] || fail "the host lost its disk"
    # Another host only: this one is disconnected, the file is not opened again.
    configure "{\"id\": 1, \"file\": \"$work/one\", \"read_only\": true}" ', "allow_hosts": ["nqn.host:other"]'
    kill -HUP "$target"
    says 'may not use'
    wait_for 10 eval '[ "$(counter controllers)" = 0 ]' || fail "the host stays"
    nvme disconnect -n $nqn >/dev/null
    end_target
}

case_a_file_or_device_in_use_is_not_served() {
    truncate -s 16M "$work/file"
    serve "$work/file" --nqn $nqn
    "$programs/rdma-nvme" serve "$work/file" --nqn $nqn --port 4421 >"$work/said" 2>&1
    [ $? = 3 ] || fail "status $?"
    grep -q "$work/file is in use by another" "$work/said" || fail "said: $(cat "$work/said")"
    end_target
    modprobe -rq brd; modprobe brd rd_nr=1 rd_size=65536
    mkfs.ext4 -q /dev/ram0 && mkdir -p "$work/mount" && mount /dev/ram0 "$work/mount" || fail mount
    "$programs/rdma-nvme" serve /dev/ram0 --nqn $nqn --port 4421 >"$work/said" 2>&1
    [ $? = 3 ] || fail "status $?"
    grep -q '/dev/ram0 is mounted or in use' "$work/said" || fail "said: $(cat "$work/said")"
    serve /dev/ram0 --nqn $nqn --shared
    end_target
    umount "$work/mount"
    serve /dev/ram0 --nqn $nqn
    says 'has nothing to identify it by'
    end_target
}

case_another_file_of_the_same_name_is_another_disk() {
    truncate -s 64M "$work/file"
    serve "$work/file" --nqn $nqn
    connect --ctrl-loss-tmo=60
    disk
    local before
    before=$(cat /sys/block/nvme0n1/wwid)
    dd if=/dev/urandom of=$udev bs=64k count=1 oflag=direct status=none || fail write
    # The same file after a restart is the same disk.
    kill -KILL "$target"
    wait "$target" 2>/dev/null
    serve "$work/file" --nqn $nqn
    says 'connected to' 30
    cmp -n 65536 $udev "$work/file" || fail "the disk is not there again"
    [ "$(cat /sys/block/nvme0n1/wwid)" = "$before" ] || fail "another disk after a restart"
    kill -KILL "$target"
    wait "$target" 2>/dev/null
    mv "$work/file" "$work/old"
    truncate -s 64M "$work/file"
    exec 9<$udev
    serve "$work/file" --nqn $nqn
    says 'connected to' 30
    wait_for 30 eval '! dd if=/dev/fd/9 of=/dev/null bs=4k count=1 iflag=direct status=none' || fail "the host reads the other file"
    exec 9<&-
    dmesg | grep -qE 'identifiers changed for nsid 1' || fail "the host does not say so"
    disconnect
    end_target
}

case_files_with_equal_handles_on_two_file_systems_are_two_disks() {
    local i
    modprobe -rq brd; modprobe brd rd_nr=2 rd_size=32768
    mkfs.ext4 -q /dev/ram0 || fail "mkfs.ext4"
    mkdir "$work/at1" "$work/at2"
    mount /dev/ram0 "$work/at1" || fail mount
    truncate -s 16M "$work/at1/disk"
    umount "$work/at1"
    # The copy has the same inodes and generations.
    cat /dev/ram0 >/dev/ram1
    # As tune2fs demands.
    e2fsck -fy /dev/ram1 >/dev/null 2>&1 || fail e2fsck
    tune2fs -f -U random /dev/ram1 >"$work/tune2fs" 2>&1 || { cat "$work/tune2fs"; ls -l /dev/ram*; fail tune2fs; }
    for i in 1 2; do mount -o ro /dev/ram$((i - 1)) "$work/at$i" || fail "mount $i"; done
    [ "$(stat -c %i "$work/at1/disk")" = "$(stat -c %i "$work/at2/disk")" ] || fail "the inodes differ"
    echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"namespaces\": [{\"id\": 1, \"file\": \"$work/at1/disk\", \"read_only\": true}, {\"id\": 2, \"file\": \"$work/at2/disk\", \"read_only\": true}]}]}" >"$work/disks.json"
    serve --config "$work/disks.json"
    connect
    disk
    wait_for 10 test -b /dev/nvme0n2 || fail "no second disk"
    [ "$(cat /sys/block/nvme0n1/wwid)" != "$(cat /sys/block/nvme0n2/wwid)" ] || fail "the same wwid"
    disconnect
    end_target
    umount "$work/at1" "$work/at2"
}

case_two_machines_with_the_same_defaults_are_two_disks() {
    local one two
    truncate -s 16M "$work/one"
    truncate -s 16M "$work/two"
    # A machine's name is all that differs.
    machine() {
        head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/id$1"
        (
            exec unshare --mount bash -c "touch /etc/machine-id && mount --bind '$work/id$1' /etc/machine-id && exec '$programs/rdma-nvme' serve '$2' --port $3"
        ) >"$work/serve-machine$1.log" 2>&1 &
        wait_for 10 grep -q '^subsystem' "$work/serve-machine$1.log" || fail "machine $1"
    }
    machine 1 "$work/one" 4421
    one=$!
    machine 2 "$work/two" 4422
    two=$!
    local first second
    first=$(sed -n 's/^subsystem \(.*\)\.$/\1/p' "$work/serve-machine1.log")
    second=$(sed -n 's/^subsystem \(.*\)\.$/\1/p' "$work/serve-machine2.log")
    [ -n "$first" ] && [ "$first" != "$second" ] || fail "names: $first, $second"
    nvme connect -t rdma -a $here -s 4421 -n "$first" --nr-io-queues=1 || fail "connect 1"
    nvme connect -t rdma -a $here -s 4422 -n "$second" --nr-io-queues=1 || fail "connect 2"
    wait_for 10 test -b /dev/nvme1n1 || fail "no second disk"
    [ "$(cat /sys/block/nvme0n1/wwid)" != "$(cat /sys/block/nvme1n1/wwid)" ] || fail "the same wwid"
    [ "$(cat /sys/class/nvme/nvme0/serial)" != "$(cat /sys/class/nvme/nvme1/serial)" ] || fail "the same serial number"
    nvme disconnect-all
    end_target $one
    end_target $two
}

case_lost_data_is_reported_and_stays_lost() {
    local works='0 65536 linear /dev/ram0 0'
    modprobe -rq brd; modprobe brd rd_nr=1 rd_size=32768
    modprobe dm-mod
    device() { dmsetup --noudevsync "$1" lost ${2:+--table "$2"} || fail "dmsetup $*"; }
    swap_table() { dmsetup --noudevsync suspend --noflush --nolockfs lost && device load "$1" && dmsetup --noudevsync resume lost; }
    local method
    for method in io_uring threads; do
        device create "$works"
        dmsetup mknodes lost || fail "dmsetup mknodes"
        configure() { echo "{\"subsystems\": [{\"nqn\": \"$nqn\", \"namespaces\": [{\"id\": 1, \"file\": \"/dev/mapper/lost\", \"file_io\": \"$1\"}]}]}" >"$work/disks.json"; }
        configure $method
        serve --config "$work/disks.json" --quiet
        connect
        disk
        dd if=/dev/urandom of=$udev bs=64k count=4 oflag=direct status=none || fail write
        swap_table '0 65536 error'
        if nvme flush $udev >"$work/said" 2>&1; then fail "the flush succeeds"; fi
        says 'a flush failed: Input/output error; what hosts have written since the last flush may be lost'
        swap_table "$works"
        if nvme flush $udev >"$work/said" 2>&1; then fail "a later flush succeeds"; fi
        if dd if=/dev/zero of=$udev bs=4k count=1 oflag=direct status=none 2>/dev/null; then fail "a later write succeeds"; fi
        # A store that takes its place does not make durable what is lost.
        configure auto
        kill -HUP "$target"
        sleep 1
        if nvme flush $udev >"$work/said" 2>&1; then fail "a flush succeeds after a reload"; fi
        dd if=$udev of=/dev/null bs=4k count=1 iflag=direct status=none || fail "read"
        [ "$(grep -c 'a flush failed' "$log")" = 1 ] || fail "said more than once: $(cat "$log")"
        [ "$(counter store_failures)" -ge 2 ] || fail "not counted"
        disconnect
        end_target
        dmsetup --noudevsync remove --retry lost || fail "dmsetup remove"
    done
}

case_a_killed_target_loses_nothing_that_was_acknowledged() {
    local load round
    truncate -s 64M "$work/file"
    serve "$work/file" --nqn $nqn
    connect --ctrl-loss-tmo=60
    disk
    fio --allow_file_create=0 --name=load --filename=$udev --rw=randwrite --bs=4k --size=24M --io_size=24M --verify=crc32c --verify_fatal=1 --ioengine=libaio \
        --direct=1 --iodepth=8 --fsync=32 --output="$work/fio" &
    load=$!
    for round in 1 2 3; do
        sleep "0.$((RANDOM % 9 + 1))"
        kill -KILL "$target"
        wait "$target" 2>/dev/null
        serve "$work/file" --nqn $nqn
        says 'connected to' 30
    done
    wait $load || { cat "$work/fio"; fail "fio: data is lost"; }
    disconnect
    end_target
}

case_a_host_resets_and_rescans_during_io() {
    local load i reads
    serve --memory 64M --nqn $nqn
    connect
    disk
    head -c 8192 /dev/urandom >"$work/random"
    nvme write $udev -s 100 -c 1 -z 8192 -d "$work/random" >/dev/null 2>&1 || fail "nvme write"
    nvme read $udev -s 100 -c 1 -z 8192 -d "$work/back" >/dev/null 2>&1 || fail "nvme read"
    cmp "$work/random" "$work/back" || fail "nvme read returned something else"
    nvme list-subsys | grep -q $nqn || fail list-subsys
    fio --allow_file_create=0 --name=load --filename=$udev --rw=randwrite --bs=4k --offset=1M --size=16M --verify=crc32c --verify_fatal=1 --ioengine=libaio \
        --direct=1 --iodepth=8 --output="$work/fio" &
    load=$!
    for i in 1 2 3; do
        sleep 0.3
        nvme ns-rescan /dev/nvme0 || fail ns-rescan
        nvme reset /dev/nvme0 || fail reset
    done
    wait $load || { cat "$work/fio"; fail "fio"; }
    # Disconnecting ends the I/O with errors, and nothing else.
    reads=$(($(counter reads) + 100))
    fio --allow_file_create=0 --name=load --filename=$udev --rw=randread --bs=4k --size=16M --ioengine=libaio --direct=1 --iodepth=8 --time_based --runtime=60 \
        --output="$work/fio" 2>/dev/null &
    load=$!
    wait_for 30 eval '[ "$(counter reads)" -gt $reads ]' || fail "nothing is read"
    disconnect
    wait $load
    wait_for 10 eval '[ "$(counter queues)" = 0 ]' || fail "queues are left"
    end_target
}

case_two_hundred_connects_leave_nothing_behind() {
    local i files before
    serve --memory 16M --nqn $nqn
    connect
    disk
    disconnect
    says 'controller .* ended'
    wait_for 5 eval '[ "$(counter queues)" = 0 ]'
    sleep 0.5
    files=$(ls /proc/$target/fd | wc -l)
    before=$(resources)
    for i in $(seq 200); do
        # A controller without I/O queues that wait: only the association is made.
        nvme discover -t rdma -a $here -s $port >/dev/null || fail "connect $i"
        if [ $((i % 20)) = 0 ]; then
            connect
            disconnect
        fi
    done
    wait_for 10 eval '[ "$(counter queues)" = 0 ]' || fail "queues are left"
    wait_for 10 eval "[ \$(ls /proc/$target/fd | wc -l) = $files ]" || fail "descriptors are left: $(ls -l /proc/$target/fd)"
    wait_for 10 eval "[ \"\$(resources)\" = '$before' ]" || fail "left: $(resources); before: $before"
    end_target
}

case_hosts_that_are_not_allowed_are_refused() {
    serve --memory 16M --nqn $nqn --allow-host nqn.host:good
    refused -n $nqn --hostnqn=nqn.host:bad --hostid=00000000-0000-4000-8000-000000000001
    says "refused host nqn.host:bad at $here:[0-9]+, subsystem $nqn: host not allowed"
    refused -n nqn.other --hostnqn=nqn.host:good --hostid=00000000-0000-4000-8000-000000000001
    says "refused host nqn.host:good at $here:[0-9]+, subsystem nqn.other: unknown subsystem"
    nvme connect -t rdma -a $here -s $port -n $nqn --nr-io-queues=1 --hostnqn=nqn.host:good \
        --hostid=00000000-0000-4000-8000-000000000002 || fail "the good host"
    disk
    disconnect
    end_target
}

# --- authentication: the kernel of Debian 12 cannot, Linux 6.12 of its backports can ------------------------------------------------------

secret_host=nqn.host:secret
secret_id=00000000-0000-4000-8000-000000000003

# The kernel has this function only with CONFIG_NVME_HOST_AUTH (before 6.7: CONFIG_NVME_AUTH).
needs_authentication() {
    grep -q ' nvme_auth_negotiate\b' /proc/kallsyms || skip "Linux $(uname -r) is built without CONFIG_NVME_HOST_AUTH"
}

# new_secret OWNER HASH: HASH is 0 for a secret that is used as it is, or 1 to 3 for one that SHA-256, -384 or -512 transforms.
new_secret() { nvme gen-dhchap-key --nqn="$1" --hmac="$2" || fail "gen-dhchap-key $*"; }

# serve_secrets SECRET [CONTROLLER-SECRET]
serve_secrets() {
    cat >"$work/secrets.json" <<JSON
{"subsystems": [{"nqn": "$nqn", "secrets": [{"host": "$secret_host", "secret": "$1"${2:+, \"controller_secret\": \"$2\"}}],
    "namespaces": [{"memory": "16M"}]}]}
JSON
    serve --config "$work/secrets.json"
}

connect_secretly() { connect --hostnqn=$secret_host --hostid=$secret_id "$@"; }
# refused_secretly REASON ARGUMENT…: REASON is the one of nvme-cli.
refused_secretly() {
    local reason=$1
    shift
    refused -n $nqn --hostnqn=$secret_host --hostid=$secret_id "$@"
    grep -q "$reason" "$work/refused" || fail "another reason than '$reason': $(cat "$work/refused")"
}

case_a_host_that_does_not_authenticate_is_refused() {
    serve_secrets "$(new_secret $secret_host 0)"
    refused -n $nqn --hostnqn=$secret_host --hostid=$secret_id
    says "host $secret_host at .*, subsystem $nqn: left before it had authenticated"
    if grep -q 'connected to' "$log"; then fail "said to be connected"; fi
    refused -n $nqn --hostnqn=nqn.host:other --hostid=$secret_id
    says "refused host nqn.host:other at .*, subsystem $nqn: host has no secret"
    [ "$(counter reads)" = 0 ] || fail "read without authentication"
    end_target
}

# Linux offers all hashes and groups, of which the target chooses SHA-256 and ffdhe2048; test/nvme/authentication_test.cpp has the others.
authenticate_one_way() { # authenticate_one_way HASH
    local secret
    needs_authentication
    secret=$(new_secret $secret_host "$1")
    serve_secrets "$secret"
    dmesg -C
    connect_secretly --dhchap-secret="$secret"
    disk
    dmesg | grep -q 'qid 0: authenticated with hash hmac(sha256) dhgroup ffdhe2048' || fail "the host did not authenticate"
    if dmesg | grep -q 'controller authenticated'; then fail "the target authenticated unasked"; fi
    verify_by_fio $udev --bs=4k --size=1M
    [ "$(counter refused)" = 0 ] || fail "refused: $(counter refused)"
    disconnect
    end_target
}

authenticate_both_ways() { # authenticate_both_ways HASH
    local secret controller_secret
    needs_authentication
    secret=$(new_secret $secret_host "$1") controller_secret=$(new_secret $nqn "$1")
    serve_secrets "$secret" "$controller_secret"
    dmesg -C
    connect_secretly --dhchap-secret="$secret" --dhchap-ctrl-secret="$controller_secret"
    disk
    dmesg | grep -q 'qid 0: authenticated with hash hmac(sha256) dhgroup ffdhe2048' || fail "the host did not authenticate"
    dmesg | grep -q 'qid 0: controller authenticated' || fail "the target did not authenticate"
    verify_by_fio $udev --bs=4k --size=1M
    [ "$(counter refused)" = 0 ] || fail "refused: $(counter refused)"
    disconnect
    end_target
}

refuse_a_wrong_secret() { # refuse_a_wrong_secret HASH
    needs_authentication
    serve_secrets "$(new_secret $secret_host "$1")"
    refused_secretly 'Key was rejected by service' --dhchap-secret="$(new_secret $secret_host "$1")"
    says "host $secret_host at .* failed to authenticate"
    [ "$(counter refused)" = 1 ] || fail "refused: $(counter refused)"
    [ "$(counter reads)" = 0 ] || fail "read without authentication"
    end_target
}

refuse_a_wrong_controller_secret() { # refuse_a_wrong_controller_secret HASH
    local secret
    needs_authentication
    secret=$(new_secret $secret_host "$1")
    serve_secrets "$secret" "$(new_secret $nqn "$1")"
    dmesg -C
    refused_secretly 'Key was rejected by service' --dhchap-secret="$secret" --dhchap-ctrl-secret="$(new_secret $nqn "$1")"
    dmesg | grep -q 'qid 0: controller authentication failed' || fail "the host did not check the target"
    [ "$(counter reads)" = 0 ] || fail "read by a host that refused the target"
    end_target
}

case_authentication_one_way_with_a_plain_secret() { authenticate_one_way 0; }
case_authentication_one_way_with_a_secret_of_sha256() { authenticate_one_way 1; }
case_authentication_one_way_with_a_secret_of_sha384() { authenticate_one_way 2; }
case_authentication_one_way_with_a_secret_of_sha512() { authenticate_one_way 3; }
case_authentication_both_ways_with_plain_secrets() { authenticate_both_ways 0; }
case_authentication_both_ways_with_secrets_of_sha256() { authenticate_both_ways 1; }
case_authentication_both_ways_with_secrets_of_sha384() { authenticate_both_ways 2; }
case_authentication_both_ways_with_secrets_of_sha512() { authenticate_both_ways 3; }
case_authentication_refuses_a_wrong_plain_secret() { refuse_a_wrong_secret 0; }
case_authentication_refuses_a_wrong_secret_of_sha256() { refuse_a_wrong_secret 1; }
case_authentication_refuses_a_wrong_secret_of_sha384() { refuse_a_wrong_secret 2; }
case_authentication_refuses_a_wrong_secret_of_sha512() { refuse_a_wrong_secret 3; }
case_authentication_refuses_a_wrong_plain_controller_secret() { refuse_a_wrong_controller_secret 0; }
case_authentication_refuses_a_wrong_controller_secret_of_sha256() { refuse_a_wrong_controller_secret 1; }
case_authentication_refuses_a_wrong_controller_secret_of_sha384() { refuse_a_wrong_controller_secret 2; }
case_authentication_refuses_a_wrong_controller_secret_of_sha512() { refuse_a_wrong_controller_secret 3; }

case_authentication_is_repeated_during_io() {
    local secret controller_secret load i
    needs_authentication
    secret=$(new_secret $secret_host 1) controller_secret=$(new_secret $nqn 2)
    serve_secrets "$secret" "$controller_secret"
    connect_secretly --dhchap-secret="$secret" --dhchap-ctrl-secret="$controller_secret"
    disk
    fio --allow_file_create=0 --name=load --filename=$udev --rw=randwrite --bs=4k --size=8M --verify=crc32c --verify_fatal=1 --ioengine=libaio --direct=1 \
        --iodepth=8 --time_based --runtime=600 --output="$work/fio" &
    load=$!
    wait_for 20 eval '[ "$(counter writes)" -gt 0 ]' || fail "no I/O"
    for i in 1 2 3; do
        dmesg -C
        # Setting a secret, even the same one, makes Linux authenticate again.
        echo -n "$secret" >/sys/class/nvme/nvme0/dhchap_secret || fail "setting the secret"
        wait_for 20 eval 'dmesg | grep -q "qid 0: controller authenticated"' || fail "not authenticated again"
        dmesg | grep -q 're-authenticating controller' || fail "not a repetition"
    done
    kill -INT $load
    wait $load
    # 128 is fio's status after a signal, if no I/O failed.
    status=$?
    [ $status = 128 ] || { cat "$work/fio"; fail "fio: status $status"; }
    [ "$(counter controllers_made)" = 1 ] || fail "connected again"
    [ "$(counter failed_commands)" = 0 ] || fail "commands failed: $(counter failed_commands)"
    echo -n "$(new_secret $secret_host 1)" >/sys/class/nvme/nvme0/dhchap_secret || fail "setting another secret"
    says "host $secret_host at .* failed to authenticate"
    says 'controller 1 .* ended'
    disconnect
    end_target
}

case_a_signal_disconnects_hosts_and_counters_are_served() {
    serve --memory 16M --nqn $nqn --statistics "$work/socket"
    connect --ctrl-loss-tmo=1
    disk
    dd if=/dev/zero of=$udev bs=4k count=10 oflag=direct status=none || fail dd
    curl_unix() { python3 -c "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect('$work/socket')
s.sendall(b'GET $1 HTTP/1.1\r\nHost: x\r\n\r\n'); print(s.makefile().read())"; }
    curl_unix /metrics | grep -q '^rdma_nvme_writes_total [1-9]' || fail "metrics: $(curl_unix /metrics)"
    curl_unix /metrics | grep -qE "^rdma_nvme_host_commands_total\{subsystem=\"$nqn\",namespace=\"1\",host=\"nqn[^\"]*\",operation=\"write\"\} [1-9]" || fail "metrics: $(curl_unix /metrics)"
    curl_unix /metrics | grep -q '^rdma_nvme_build_info{version="[0-9.]*"} 1$' || fail "metrics: $(curl_unix /metrics)"
    curl_unix /statistics | grep -q '"controllers":1' || fail "statistics"
    curl_unix /nothing | grep -q '404' || fail "an unknown path"
    end_target
    [ ! -e "$work/socket" ] || fail "the socket is left"
    grep -q '"queues":0' "$log" || fail "queues are left"
    wait_for 20 test ! -e /dev/nvme0 || fail "the host keeps the controller"
}

# --- two devices, one wire ---------------------------------------------------------------------------------------------------------------

loss() { tc qdisc "$1" dev v0 root netem ${2:+loss "$2"} && tc qdisc "$1" dev v1 root netem ${2:+loss "$2"}; }
cut() {
    nft -f - <<<'table netdev cut {
        chain in0 { type filter hook ingress device v0 priority 0; udp dport 4791 drop; }
        chain in1 { type filter hook ingress device v1 priority 0; udp dport 4791 drop; }
    }'
}
mend() { nft delete table netdev cut; }

case_wire_another_host_writes_and_reads() {
    here=10.0.1.1
    serve --memory 64M --nqn $nqn --bind $here
    connect
    disk
    verify_by_fio $udev --bsrange=4k-128k --size=2M --iodepth=16
    disconnect
    end_target
}

case_wire_one_percent_loss_delays_and_loses_nothing() {
    here=10.0.1.1
    serve --memory 64M --nqn $nqn --bind $here
    connect
    disk
    loss add 1% || fail "netem"
    # A lost packet costs seconds: the kernel's connection manager chooses the timeout.
    verify_by_fio $udev --bs=4k --size=256k --iodepth=8
    loss del
    disconnect
    end_target
}

case_wire_a_cut_link_frees_the_target_and_the_host_comes_back() {
    here=10.0.1.1
    serve --memory 64M --nqn $nqn --bind $here
    connect --keep-alive-tmo=2 --ctrl-loss-tmo=120
    disk
    cut || fail nft
    wait_for 60 eval '[ "$(counter controllers)" = 0 ]' || fail "the controller stays"
    mend
    says 'as controller 2' 60
    verify_by_fio $udev --bs=4k --size=1M
    disconnect
    end_target
}

case_wire_a_stopped_target_is_detected_and_used_again() {
    here=10.0.1.1
    serve --memory 64M --nqn $nqn --bind $here
    connect --keep-alive-tmo=1
    disk
    kill -STOP "$target"
    wait_for 60 grep -q connecting /sys/class/nvme/nvme0/state || fail "the host does not detect it"
    kill -CONT "$target"
    wait_for 90 grep -q live /sys/class/nvme/nvme0/state || fail "the host does not come back"
    wait_for 30 eval '[ "$(counter controllers)" = 1 ]' || fail "controllers are left: $(counter controllers)"
    verify_by_fio $udev --bs=4k --size=1M
    disconnect
    end_target
}

# --- the run -----------------------------------------------------------------------------------------------------------------------------

modprobe nvme-rdma || { echo "initiator.sh: the guest's kernel has no nvme-rdma"; exit 1; }
mkdir -p /etc/nvme
[ -s /etc/nvme/hostnqn ] || nvme gen-hostnqn >/etc/nvme/hostnqn
[ -s /etc/nvme/hostid ] || sed 's/.*uuid://' /etc/nvme/hostnqn >/etc/nvme/hostid

all=$(declare -F | sed -n 's/^declare -f case_//p')
if [ "$*" = ceph ]; then
    all=$(grep '^ceph_' <<<"$all")
elif [ $# != 0 ]; then
    all=$*
elif [ -d /sys/class/infiniband/rxe1 ]; then
    all=$(grep '^wire_' <<<"$all")
else
    all=$(grep -vE '^(wire|ceph)_' <<<"$all")
fi
# One cluster for all cases.
if [[ " ${all//$'\n'/ }" == *" ceph_"* ]]; then
    ceph_script=$(dirname "$0")/ceph.sh cluster=$(mktemp -d)
    "$ceph_script" start "$cluster" || { echo "initiator.sh: no Ceph cluster"; exit 1; }
    trap '"$ceph_script" stop "$cluster"' EXIT
fi
number=0 bad=0 count=$(wc -w <<<"$all") began=$SECONDS
for name in $all; do
    number=$((number + 1)) start=$(date +%s%N)
    # A case of its own process group, so that nothing of it stays.
    (set -m; ("case_$name") >"$work/output" 2>&1 & wait $!)
    status=$?
    took=$(awk "BEGIN { printf \"%.2f\", ($(date +%s%N) - $start) / 1e9 }")
    case $status in
    0) verdict='   Passed' ;;
    77) verdict='***Skipped' ;;
    *) verdict='***Failed' bad=$((bad + 1)) ;;
    esac
    printf '%3d/%d Test %3s: nvme: %s ...%s %6s sec\n' $number "$count" "#$number" "${name//_/ }" "$verdict" "$took"
    [ $status = 0 ] || cat "$work/output"
    nvme disconnect-all 2>/dev/null
    for program in rdma-nvme nbdkit qemu-nbd; do pkill -KILL -x $program; done
    wait_for 20 eval '! ls -d /dev/nvme[0-9]* >/dev/null 2>&1' || echo "controllers are left: $(ls /dev/nvme*)"
    # What a case that failed has left.
    awk -v at="$work/" 'index($2, at) == 1 { print $2 }' /proc/mounts | xargs -r umount
    losetup -D
    rm -rf "${work:?}"/*
done
echo
echo "$((100 * (count - bad) / count))% tests passed, $bad tests failed out of $count"
echo
echo "Total Test time (real) = $((SECONDS - began)) sec"
[ $bad = 0 ]
