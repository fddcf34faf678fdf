#!/usr/bin/env bash
# processes.sh FOLDER CASE — programs of others on devices of the fabric, each in a process of its own: FOLDER has rcverbs-fabric and the
# programs of this project. Started by root, the programs run as nobody: nothing needs rights. Exits 77 if a program is not installed.
# processes.sh --list prints the cases.
set -uo pipefail

cases='devices loads_by_name rping rping_v6 many_pings ucmatose cmtime endpoints pingpong shared_queue_pingpong
    write_bw write_lat read_bw read_lat send_bw send_lat atomic_bw atomic_lat fio_write fio_read fio_send
    demo_write demo_read demo_atomic nvme nvme_nbd copy bench a_stopped_process one_node a_port_is_taken_once nobody_listens nobody_is_there a_killed_server few_descriptors late_listener the_doctor nbdkit_plugin keys
    a_kill_at_each_packet lost_packets delayed_packets a_link_is_down a_node_is_killed a_fork a_large_read sockets wrong_usage a_hostile_process the_demo behaviour libfabric libfabric_rma librpma namespaces capture late_receive last_words last_message ucx stepped stepped_kills stepped_busily stepped_wrongly chosen_ports pyverbs
    refused_each_time joined joined_again joined_copy joined_ends joined_containers joined_wrongly a_hostile_machine'
if [ "${1-}" = --list ]; then
    printf '%s\n' $cases
    exit 0
fi
built=$(cd "$1" && pwd) name=$2 here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

# Nobody may read neither the build nor this user's runtime directory.
work=$(mktemp -d)
# Programs that a case has left, and bridges, are known by the directory in their environment.
left() { env -u XDG_RUNTIME_DIR sh -c 'grep -lzs "^XDG_RUNTIME_DIR=$1" /proc/[0-9]*/environ | cut -d / -f 3' sh "$work"; }
trap 'exec 2>/dev/null; kill -9 $(left) $(jobs -p); wait; rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -m 700 "$work/run"
cp -r "$built/rcverbs-fabric.d" "$work/"
for program in rcverbs-fabric rdma-bench rdma-server rdma-client rdma-copy rdma-doctor; do cp "$built/$program" "$work/"; done
as_nobody=()
if [ "$(id -u)" = 0 ]; then
    chown -R 65534:65534 "$work/run"
    as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
export XDG_RUNTIME_DIR=$work/run
cd "$work/run" || exit 1

fail() {
    echo "$name: $*" >&2
    # The errors of a program precede what it prints.
    head -n 60 "$work"/*.out >&2
    exit 1
}
need() {
    command -v "$1" >/dev/null && return
    echo "skipped: $1 is not installed"
    exit 77
}
fabric() { "${as_nobody[@]}" "$work/rcverbs-fabric" "$@"; }
# on NODE COMMAND…: runs a command, within a minute.
on() {
    local node=$1
    shift
    fabric run -q --node "$node" timeout -k 5 60 "$@"
}
# serve NODE COMMAND…: runs a command in the background.
serve() {
    on "$@" >"$work/server.out" 2>&1 &
    server=$!
}
# await COMMAND…: until it succeeds; fails the test after half a minute.
await() {
    local i
    for ((i = 0; i < 600; ++i)); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.05
    done
    fail "waited in vain: $*"
}
has_node() { fabric list | grep -q "^$1 "; }
listens() { fabric list | grep -q "^$1 .*port $2\b"; }
# A TCP port of the machine, by which some programs meet: one for each process that runs this.
tcp=$((20000 + $$ % 20000))
listens_tcp() { grep -qi ":$(printf %04x "$1") 00000000:0000 0A" /proc/net/tcp || grep -qi ":$(printf %04x "$1") 0\+:0000 0A" /proc/net/tcp6; }
# both PORT SERVER -- CLIENT…: the server on node 1, the client on node 2; both must succeed.
both() {
    local port=$1 words=() status
    shift
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    serve 1 "${words[@]}"
    case $port in tcp) await listens_tcp "$tcp" ;; *) await listens 1 "$port" ;; esac
    on 2 "$@" >"$work/client.out" 2>&1
    status=$?
    [ $status = 0 ] || fail "the client ended with $status"
    wait "$server"
    status=$?
    [ $status = 0 ] || fail "the server ended with $status"
}
# perftest PROGRAM: connected by the connection manager, and through TCP.
perftest() {
    need "$1"
    # It listens again after the first connection, and its client may be faster: then the client is refused and crashes.
    local tries
    for tries in 1 2 3 4 5; do
        (both "$tcp" "$1" -R -n 500 -p "$tcp" -- "$1" -R -n 500 -p "$tcp" 10.77.0.1) && break
        grep -q 'REJECTED; error: 8' "$work/client.out" && [ "$tries" != 5 ] || exit 1
        fabric kill 1
    done
    both tcp "$1" -n 500 -p "$tcp" -- "$1" -n 500 -p "$tcp" 127.0.0.1
}
# fio_job VERB [OPTION…]
fio_job() {
    need fio
    fio --enghelp=rdma >/dev/null 2>&1 || { echo 'skipped: fio has no rdma engine'; exit 77; }
    local verb=$1
    shift
    local common=(--name=t --ioengine=rdma --port=7999 --bs=16k --size=4m --iodepth=4 "$@")
    both 7999 fio "${common[@]}" --rw=read -- fio "${common[@]}" --hostname=10.77.0.1 --verb="$verb" --rw=write
    grep -q 'err= 0' "$work/client.out" || fail 'fio reports an error'
}
demo() {
    serve 1 "$work/rdma-server" "$1" --port 7471
    await listens 1 7471
    on 2 "$work/rdma-client" "$1" 10.77.0.1 7471 >"$work/client.out" 2>&1 || fail "the client ended with $?"
}

devices() {
    need ibv_devinfo
    on 1 ibv_devices >"$work/client.out" && grep -q fab0 "$work/client.out" || fail 'no device'
    fabric run -q --node 3 --devices 2 ibv_devinfo -v >"$work/client.out" || fail "ibv_devinfo ended with $?"
    [ "$(grep -c 'PORT_ACTIVE' "$work/client.out")" = 2 ] || fail 'not two active ports'
    grep -q '::ffff:10.77.1.3, RoCE v2' "$work/client.out" || fail 'no address of the second device'
}
# A program that loads the libraries by their names, with nothing preloaded.
loads_by_name() {
    need /usr/bin/python3
    LD_LIBRARY_PATH=$work/rcverbs-fabric.d "${as_nobody[@]}" /usr/bin/python3 - <<'PYTHON' || fail 'the libraries do not work'
import ctypes
verbs, cm = ctypes.CDLL("libibverbs.so.1"), ctypes.CDLL("librdmacm.so.1")
count = ctypes.c_int()
verbs.ibv_get_device_list.restype = ctypes.c_void_p
assert verbs.ibv_get_device_list(ctypes.byref(count)) and count.value == 1, count
cm.rdma_create_event_channel.restype = ctypes.c_void_p
assert cm.rdma_create_event_channel()
PYTHON
}
rping() {
    need rping
    both 7174 rping -s -v -C 3 -- rping -c -v -C 3 -a 10.77.0.1
    [ "$(grep -c 'ping data: rdma-ping' "$work/client.out")" = 3 ] || fail 'not three answers'
}
rping_v6() {
    need rping
    both 7174 rping -s -a fd77::1 -C 3 -- rping -c -C 3 -a fd77::1
}
many_pings() {
    need rping
    both 7174 rping -s -V -S 4000 -C 100 -- rping -c -V -S 4000 -C 100 -a 10.77.0.1
}
ucmatose() {
    need ucmatose
    both 7471 ucmatose -c 10 -C 20 -- ucmatose -c 10 -C 20 -s 10.77.0.1
}
cmtime() {
    need cmtime
    serve 1 cmtime -c 50
    await listens 1 7471
    on 2 cmtime -c 50 -s 10.77.0.1 >"$work/client.out" 2>&1 || fail "the client ended with $?"
}
endpoints() {
    need rdma_server
    both 7471 rdma_server -- rdma_client -s 10.77.0.1
}
pingpong() {
    need ibv_rc_pingpong
    both tcp ibv_rc_pingpong -g 0 -p "$tcp" -c -- ibv_rc_pingpong -g 0 -p "$tcp" -c 127.0.0.1
    both tcp ibv_rc_pingpong -g 1 -e -p "$tcp" -- ibv_rc_pingpong -g 1 -e -p "$tcp" 127.0.0.1
}
shared_queue_pingpong() {
    need ibv_srq_pingpong
    both tcp ibv_srq_pingpong -g 0 -p "$tcp" -- ibv_srq_pingpong -g 0 -p "$tcp" 127.0.0.1
}
write_bw() { perftest ib_write_bw; }
write_lat() { perftest ib_write_lat; }
read_bw() { perftest ib_read_bw; }
read_lat() { perftest ib_read_lat; }
send_bw() { perftest ib_send_bw; }
send_lat() { perftest ib_send_lat; }
atomic_bw() { perftest ib_atomic_bw; }
atomic_lat() { perftest ib_atomic_lat; }
fio_write() { fio_job write; }
fio_read() { fio_job read; }
# It has no flow control, and its connections do not repeat after RNR: there is a receive for each message.
fio_send() { fio_job send --size=256k --iodepth=16; }
demo_write() { demo write; grep -q 'message from passive' "$work/client.out" || fail 'no message'; }
demo_read() { demo read; grep -q 'message from passive' "$work/client.out" || fail 'no message'; }
demo_atomic() { demo atomic; }
# A host that a test plays, as the kernel's knows no fabric.
nvme() { nvme_of "$work/run/disk"; }
# By a server that speaks NBD.
nvme_nbd() {
    need nbdkit
    "${as_nobody[@]}" truncate -s 1M "$work/run/disk"
    "${as_nobody[@]}" nbdkit --foreground --unix "$work/run/nbd" file "$work/run/disk" >"$work/nbd.out" 2>&1 &
    await test -S "$work/run/nbd"
    nvme_of --nbd "nbd+unix:///?socket=$work/run/nbd"
}
# nvme_of ARGUMENT…: of the target; it serves $work/run/disk in the end.
nvme_of() {
    [ -x "$built/device_tests" ] || fail 'device_tests is not built'
    cp "$built/rdma-nvme" "$built/device_tests" "$work/"
    "${as_nobody[@]}" truncate -s 1M "$work/run/disk"
    serve 1 "$work/rdma-nvme" serve "$@" --nqn nqn.test:disk --block-size 512 --bind 10.77.0.1
    await listens 1 4420
    on 2 env RCVERBS_TEST_TARGET=10.77.0.1 "$work/device_tests" '[elsewhere]' >"$work/client.out" 2>&1 || fail "the host ended with $?"
    # Blocks 100 to 227 were written.
    [ "$(od -An -tx1 -j 51200 -N 65536 "$work/run/disk" | sort -u | head -n 2 | wc -l)" = 2 ] || fail 'nothing is in the file'
}
copy() {
    local folder=$work/run
    "${as_nobody[@]}" mkdir "$folder/from" "$folder/to"
    "${as_nobody[@]}" dd if=/dev/urandom of="$folder/from/large" bs=64k count=64 status=none
    "${as_nobody[@]}" cp /etc/passwd "$folder/from/small"
    serve 1 "$work/rdma-copy" serve "$folder/to" --port 7472
    await listens 1 7472
    on 2 "$work/rdma-copy" --port 7472 "$folder/from/" 10.77.0.1: >"$work/client.out" 2>&1 || fail "the client ended with $?"
    diff -r "$folder/from" "$folder/to/from" || fail 'the copy differs'
}
# Only those with a key may connect, and both sides say who they are, or why not. A key is replaced while the server runs.
keys() {
    local keys=$work/run/keys folder=$work/run one two
    one=$(printf '%064d' 1) two=$(printf '%064d' 2)
    key_file() { printf '%s\n' "${@:2}" | "${as_nobody[@]}" sh -c 'umask 077; cat >"$1"' sh "$1"; }
    # refused PATTERN ARGUMENT…: of rdma-client.
    refused() {
        on 2 "$work/rdma-client" write 10.77.0.1 7471 "${@:2}" >"$work/client.out" 2>&1 && fail "it connected: ${*:2}"
        grep -q "$1" "$work/client.out" || fail "no reason: ${*:2}"
    }
    accepted() { on 2 "$work/rdma-client" write 10.77.0.1 7471 "$@" >"$work/client.out" 2>&1 || fail "the client ended with $?: $*"; }
    key_file "$keys" "alice $one" "bob $two"
    key_file "$keys.alice" "alice $one"
    key_file "$keys.other" "alice $two"
    key_file "$keys.carol" "carol $one"
    serve 1 "$work/rdma-server" write --port 7471 --key-file "$keys"
    await listens 1 7471
    accepted --key-file "$keys.alice"
    accepted --key-file "$keys" --identity bob
    grep -q 'client is alice' "$work/server.out" && grep -q 'client is bob' "$work/server.out" || fail 'the server does not say who it is'
    refused 'only one side\|one side authenticates'
    refused 'has not proved' --key-file "$keys.other"
    refused 'no key of the identity' --key-file "$keys.carol"
    refused 'no key of the identity' --key-file "$keys"
    # A key is replaced: both, then the new one.
    key_file "$keys" "alice $two" "alice $one"
    accepted --key-file "$keys.alice"
    accepted --key-file "$keys.other"
    key_file "$keys" "alice $two"
    accepted --key-file "$keys.other"
    refused 'has not proved' --key-file "$keys.alice"
    # A file that is being written locks nobody out.
    key_file "$keys" ''
    accepted --key-file "$keys.other"
    grep -q 'there are no keys.*the keys remain as they were' "$work/server.out" || fail 'the server does not say what is wrong'
    kill "$server"
    # Copies.
    key_file "$keys" "alice $one"
    "${as_nobody[@]}" mkdir "$folder/from" "$folder/to"
    "${as_nobody[@]}" cp /etc/passwd "$folder/from/file"
    serve 1 "$work/rdma-copy" serve "$folder/to" --port 7472 --key-file "$keys"
    await listens 1 7472
    on 2 "$work/rdma-copy" --port 7472 "$folder/from/" 10.77.0.1: >"$work/client.out" 2>&1 && fail 'it copied without a key'
    grep -q 'one side authenticates' "$work/client.out" || fail 'rdma-copy does not say why'
    on 2 "$work/rdma-copy" --port 7472 --key-file "$keys.other" "$folder/from/" 10.77.0.1: >"$work/client.out" 2>&1 && fail 'it copied with a wrong key'
    [ -z "$(ls "$folder/to")" ] || fail 'something was copied'
    on 2 "$work/rdma-copy" --port 7472 --key-file "$keys.alice" "$folder/from/" 10.77.0.1: >"$work/client.out" 2>&1 || fail "rdma-copy ended with $?"
    diff -r "$folder/from" "$folder/to/from" || fail 'the copy differs'
    await grep -q '^alice at 10.77.0.2' "$work/server.out"
    kill "$server"
    # Benchmarks.
    serve 1 "$work/rdma-bench" server --port 7473 --key-file "$keys"
    await listens 1 7473
    on 2 "$work/rdma-bench" client 10.77.0.1 7473 write -n 100 >"$work/client.out" 2>&1 && fail 'it measured without a key'
    grep -q 'one side authenticates' "$work/client.out" || fail 'rdma-bench does not say why'
    on 2 "$work/rdma-bench" client 10.77.0.1 7473 write -n 100 --key-file "$keys.other" >"$work/client.out" 2>&1 && fail 'it measured with a wrong key'
    on 2 "$work/rdma-bench" client 10.77.0.1 7473 write -n 100 --key-file "$keys.alice" >"$work/client.out" 2>&1 || fail "rdma-bench ended with $?"
    # A file that others may read is refused.
    "${as_nobody[@]}" chmod 644 "$keys"
    on 2 "$work/rdma-client" write 10.77.0.1 7471 --key-file "$keys" >"$work/client.out" 2>&1
    [ $? = 2 ] || fail 'it takes a file that others may read'
    grep -q 'others may read or write it' "$work/client.out" || fail 'it does not say why'
}
# Two processes share the devices of a node, as on a host.
one_node() {
    need rping
    serve 1 rping -s -C 3
    await listens 1 7174
    on 1 rping -c -C 3 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail "the client ended with $?"
    wait "$server" || fail "the server ended with $?"
}
# A plugin of nbdkit, which forks into the background after loading it, and tools of NBD's, while its server is killed and comes back.
nbdkit_plugin() {
    local tool
    for tool in nbdkit nbdinfo nbdcopy qemu-img fio; do need "$tool"; done
    [ -f "$built/example-nbdkit_plugin.so" ] || { echo 'skipped: example-nbdkit_plugin is not built; it needs nbdkit-plugin-dev'; exit 77; }
    cp "$built/example-nbdkit_plugin.so" "$built/example-block_server" "$work/"
    local run=$work/run uri="nbd+unix:///?socket=$work/run/nbd"
    "${as_nobody[@]}" truncate -s 16M "$run/disk"
    serve 1 "$work/example-block_server" 10.77.0.1 7480 "$run/disk"
    await listens 1 7480
    fabric run -q --node 2 nbdkit --unix "$run/nbd" --pidfile "$run/nbdkit.pid" "$work/example-nbdkit_plugin.so" 10.77.0.1 port=7480 >"$work/nbdkit.out" 2>&1 || fail "nbdkit ended with $?"
    await test -s "$run/nbdkit.pid"
    on 3 nbdinfo --size "$uri" >"$work/client.out" 2>&1 && [ "$(cat "$work/client.out")" = 16777216 ] || fail 'nbdinfo does not see the size'
    "${as_nobody[@]}" dd if=/dev/urandom of="$run/content" bs=64k count=256 status=none
    "${as_nobody[@]}" nbdcopy "$run/content" "$uri" >"$work/client.out" 2>&1 || fail "nbdcopy ended with $?"
    cmp "$run/content" "$run/disk" || fail 'nbdcopy has written something else'
    "${as_nobody[@]}" qemu-img compare -f raw -F raw "$uri" "$run/content" >"$work/client.out" 2>&1 || fail 'qemu-img sees a difference'
    # Verified writes, while the server is killed twice.
    "${as_nobody[@]}" fio --name=t --ioengine=nbd --uri="$uri" --rw=randrw --bs=4k --iodepth=8 --size=16m --io_size=4m --loops=3 --fsync=16 --verify=crc32c --verify_fatal=1 --thinktime=2000 \
        --thinktime_blocks=8 --aux-path="$run" >"$work/fio.out" 2>&1 &
    local job=$! kills
    for kills in 1 2; do
        sleep 0.7
        kill -0 "$job" || fail 'fio has ended before the server was killed'
        fabric kill 1 || fail 'no server to kill'
        wait "$server"
        serve 1 "$work/example-block_server" 10.77.0.1 7480 "$run/disk"
    done
    wait "$job" || fail "fio ended with $?"
    # The server ends in order, and nbdkit unloads the plugin.
    kill -TERM "$(pgrep -f "^$work/example-block_server")"
    wait "$server" || fail "the server ended with $?"
    local nbdkit
    nbdkit=$(cat "$run/nbdkit.pid")
    kill -TERM "$nbdkit"
    # shellcheck disable=SC2016 # of the inner shell
    await sh -c '! kill -0 "$1"' sh "$nbdkit"
}
the_doctor() {
    on 3 "$work/rdma-doctor" >"$work/client.out" 2>&1 || fail "the doctor ended with $?"
    grep -q 'a node of rcverbs-fabric, with the address 10.77.0.3' "$work/client.out" || fail 'it does not say where it is'
    grep -q 'RDMA works in this node' "$work/client.out" || fail 'nothing works'
}
a_port_is_taken_once() {
    need rping
    serve 1 rping -s -C 3
    await listens 1 7174
    if on 1 rping -s -C 1 >"$work/second.out" 2>&1; then fail 'a second server listens at the same port'; fi
    grep -q 'Address already in use' "$work/second.out" || fail 'another error'
    on 2 rping -c -C 3 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail 'the first server does not listen any more'
}
late_listener() {
    cp "$here/late_listener.py" "$work/"
    on 1 /usr/bin/python3 "$work/late_listener.py" 10.77.0.1 >"$work/client.out" 2>&1 || fail 'a request does not wait for its listener'
}
few_descriptors() {
    local most status
    for most in $(seq 12 24); do
        on 1 bash -c "ulimit -n $most; exec '$work/rdma-server' write" >"$work/server.out" 2>&1
        status=$?
        [ $status = 3 ] || fail "with $most descriptors: status $status"
        grep -q 'Too many open files.*aise the limit with ulimit -n' "$work/server.out" || fail "with $most descriptors: another error"
    done
}
nobody_listens() {
    need rping
    on 1 sleep 30 &
    await has_node 1
    if on 2 rping -c -C 1 -a 10.77.0.1 >"$work/client.out" 2>&1; then fail 'connected'; fi
    grep -q 'RDMA_CM_EVENT_REJECTED, error 8' "$work/client.out" || fail 'not rejected'
}
nobody_is_there() {
    need rping
    if on 2 rping -c -C 1 -a 10.77.0.9 >"$work/client.out" 2>&1; then fail 'connected'; fi
    grep -q 'RDMA_CM_EVENT_ADDR_ERROR' "$work/client.out" || fail 'resolved'
}
a_killed_server() {
    need rping
    serve 1 rping -s
    await listens 1 7174
    on 2 rping -c -V -C 1000000 -a 10.77.0.1 >"$work/client.out" 2>&1 &
    local client=$!
    sleep 0.5
    fabric kill 1 || fail 'nothing was killed'
    # rping's status is 0 all the same.
    wait "$client"
    [ $? != 124 ] || fail 'the client hangs'
    grep -q 'DISCONNECT' "$work/client.out" || fail 'the client did not hear of the end'
}
# The server is killed before its n-th packet. Whatever n is, the client ends.
a_kill_at_each_packet() {
    need rping
    local n status
    for ((n = 1; ; ++n)); do
        fabric run -q --node 1 --kill "1@$n" timeout 60 rping -s -C 1 >"$work/server.out" 2>&1 &
        server=$!
        await listens 1 7174
        on 2 rping -c -C 1 -a 10.77.0.1 >"$work/client.out" 2>&1
        status=$?
        [ $status != 124 ] || fail "the client hangs if the server is killed before packet $n"
        wait "$server"
        [ $? = 137 ] || break
    done
    [ $status = 0 ] || fail "the last client failed with $status, and no server was killed"
    ((n > 3)) || fail "the exchange has only $n packets"
    echo "killed before each of $((n - 1)) packets"
}
lost_packets() {
    need ibv_rc_pingpong
    fabric run -q --node 1 --loss 0.01 --seed 7 timeout 60 ibv_rc_pingpong -g 0 -p "$tcp" -c -n 300 >"$work/server.out" 2>&1 &
    server=$!
    await listens_tcp "$tcp"
    on 2 ibv_rc_pingpong -g 0 -p "$tcp" -c -n 300 127.0.0.1 >"$work/client.out" 2>&1 || fail "the client ended with $?"
    wait "$server" || fail "the server ended with $?"
}
delayed_packets() {
    need ibv_rc_pingpong
    fabric run -q --node 1 --delay 2000 timeout 60 ibv_rc_pingpong -g 0 -p "$tcp" -n 100 >"$work/server.out" 2>&1 &
    server=$!
    await listens_tcp "$tcp"
    on 2 ibv_rc_pingpong -g 0 -p "$tcp" -n 100 127.0.0.1 >"$work/client.out" 2>&1 || fail "the client ended with $?"
    # 100 round trips, each with one delayed packet.
    local us
    us=$(sed -nE 's/^[0-9]+ iters in .* = ([0-9]+)\..* usec.iter/\1/p' "$work/client.out")
    ((us >= 1000)) || fail "an iteration took $us us"
}
# shows NODE TEXT: the list says that of a node.
shows() { fabric list | grep "^$1 " | grep -qF -- "$2"; }
a_link_is_down() {
    need rping
    serve 1 rping -s
    await listens 1 7174
    on 2 rping -c -V -C 1000000 -a 10.77.0.1 >"$work/client.out" 2>&1 &
    local client=$!
    sleep 0.5
    fabric loss 0.25 --node 1 || fail 'nobody was told of a loss'
    fabric loss 0 --node 2 || fail 'nobody was told of no loss'
    await shows 1 '(loss 0.25)'
    fabric loss 0 --node 1
    fabric link down --node 1 || fail 'nobody was told'
    await shows 1 '(link down)'
    if shows 2 '('; then fail 'a node without faults shows some'; fi
    # Who had something to send hears it, and nobody hears of an end: the other one may wait for ever, as on a device.
    wait -n "$server" "$client"
    grep -q 'status 12' "$work/server.out" "$work/client.out" || fail 'no retry counter was exceeded'
    if grep -q DISCONNECT "$work/server.out" "$work/client.out"; then fail 'a message passed the link'; fi
    kill "$client" "$server" 2>/dev/null || true
}
a_node_is_killed() {
    need rping
    serve 1 rping -s
    await listens 1 7174
    fabric kill 1
    wait "$server"
    [ $? = 137 ] || fail 'the server lives'
    [ -z "$(fabric list)" ] || fail "a node is left: $(fabric list)"
    serve 1 rping -s -C 1
    await listens 1 7174
    on 2 rping -c -C 1 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail 'the next server of the node is not reached'
}
# A child of a process that uses RDMA has devices of its own.
a_fork() {
    need /usr/bin/python3
    LD_LIBRARY_PATH=$work/rcverbs-fabric.d "${as_nobody[@]}" /usr/bin/python3 - <<'PYTHON' || fail 'a child has no devices'
import ctypes, os, sys
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.c_void_p
count = ctypes.c_int()
verbs.ibv_get_device_list(ctypes.byref(count))
child = os.fork()
if child == 0:
    count.value = 0
    verbs.ibv_get_device_list(ctypes.byref(count))
    os._exit(0 if count.value == 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
PYTHON
}
# The answer does not fit into what a socket takes: the responder sends as the reader takes.
a_large_read() {
    need ib_read_bw
    both "$tcp" ib_read_bw -R -n 20 -s 8388608 -p "$tcp" -- ib_read_bw -R -n 20 -s 8388608 -p "$tcp" 10.77.0.1
}
# librdmacm's sockets: verified and non-blocking streams, memory that the peer writes, IPv6, and a file. Not a killed peer,
# of which a side hears nothing that waits in rrecv(); nor rstream -T a, which takes a peer that has closed for an error although there is something left to read.
sockets() {
    need rstream
    local way
    for way in v n; do
        both 7471 rstream -T $way -S 4096 -I 20 -- rstream -T $way -S 4096 -I 20 -s 10.77.0.1
    done
    both 7471 rstream -T v -S 1000000 -I 1 -C 20 -- rstream -T v -S 1000000 -I 1 -C 20 -s 10.77.0.1
    both 7471 rstream -f 6 -b fd77::1 -S 1000 -I 50 -- rstream -f 6 -S 1000 -I 50 -s fd77::1
    both 7471 riostream -T v -S 4096 -I 20 -- riostream -T v -S 4096 -I 20 -s 10.77.0.1
    head -c 3000001 /dev/urandom >"$work/some" && chmod 644 "$work/some"
    serve 1 rcopy
    await listens 1 7427
    on 2 rcopy "$work/some" "10.77.0.1:$work/run/copied" >"$work/client.out" 2>&1 || fail "the client ended with $?"
    await cmp "$work/some" "$work/run/copied"
    fabric kill 1
}
# Remote memory, messages and a shared receive queue by librpma.
librpma() {
    echo '#include <librpma.h>' | c++ -x c++ -E - >/dev/null 2>&1 || { echo 'skipped: librpma-dev is not installed'; exit 77; }
    c++ -std=c++20 -O1 -Wall -Wextra -Werror -o "$work/librpma_program" "$here/librpma_program.cpp" -lrpma -libverbs || fail 'librpma_program.cpp does not compile'
    both 7204 "$work/librpma_program" server 10.77.0.1 7204 -- "$work/librpma_program" client 10.77.0.1 7204
}
wrong_usage() {
    fabric run -q /nowhere/nothing 2>"$work/client.out"
    [ $? = 127 ] || fail 'a command that does not exist'
    fabric run --network a/b true 2>"$work/client.out"
    [ $? = 2 ] || fail 'a name with a slash'
    fabric lits 2>"$work/client.out"
    [ $? = 2 ] || fail 'a subcommand that does not exist'
    grep -q 'lits is none of' "$work/client.out" || fail 'the wrong subcommand is not named'
    fabric list >"$work/list.out" 2>&1 || fail 'a network without nodes'
    grep -q 'nobody is in network default' "$work/list.out" || fail 'a network without nodes is not named'
    fabric list --network nowhere 2>"$work/list.out"
    fabric link down --network nowhere 2>"$work/list.out" && fail 'a link of a network that is not there'
    [ ! -e "$work/run/rcverbs/nowhere" ] || fail 'looking at a network creates it'
    fabric run --loss 2 true 2>"$work/client.out"
    [ $? = 2 ] || fail 'a loss of 2'
    fabric kill 7 2>"$work/client.out" && fail 'a node that does not exist'
    fabric run -q --kill 1 true 2>"$work/client.out"
    [ $? = 2 ] || fail 'a kill without a packet'
    fabric run -q --kill 1@0 true 2>"$work/client.out"
    [ $? = 2 ] && grep -q 'PACKET=0 is not a number from 1 to' "$work/client.out" || fail 'packet 0 has no range'
    echo text >"$work/run/text"
    chmod 666 "$work/run/text"
    fabric run -q --pcap "$work/run/text" true 2>"$work/client.out" && fail 'a capture in a file that is none'
    grep -q 'text: no capture of rcverbs-fabric' "$work/client.out" || fail 'not the reason'
    [ "$(cat "$work/run/text")" = text ] || fail 'the file has changed'
    local seed
    for seed in -1 99999999999999999999999 x 1x; do
        fabric run -q --seed "$seed" true 2>"$work/client.out"
        [ $? = 2 ] || fail "the seed $seed"
    done
    fabric run -q --seed 18446744073709551615 true 2>"$work/client.out" || fail 'the largest seed'
    "${as_nobody[@]}" chmod 755 "$work/run/rcverbs"
    fabric list 2>"$work/client.out" && fail 'a directory that others may read'
    [[ " $(echo $cases) " == *' wrong_usage '* ]]
}

# A process that speaks the format: it lies about who it is, sends frames that are none, and packets and messages with any numbers
# to a server. The server goes on.
a_hostile_process() {
    need /usr/bin/python3
    serve 1 "$work/rdma-server" write --port 7174
    await listens 1 7174
    cp "$here/hostile_process.py" "$here/frames.py" "$work/"
    "${as_nobody[@]}" /usr/bin/python3 "$work/hostile_process.py" "$XDG_RUNTIME_DIR/rcverbs/default" >"$work/hostile.out" 2>&1 || fail 'the hostile process was not refused'
    kill -0 "$server" || fail 'the server has ended'
    on 2 "$work/rdma-client" write 10.77.0.1 7174 >"$work/client.out" 2>&1 || fail "the client ended with $?"
}
the_demo() {
    (cd "$here/../.." && RCVERBS_BIN=$work apps/demo.sh --on-fabric) >"$work/client.out" 2>&1 || fail "the demo ended with $?"
    [ "$(grep -c 'message from active' "$work/client.out")" = 2 ] || fail 'not two messages'
}
# Two containers that share the network's directory: neither sees the other's processes and interfaces.
namespaces() {
    need rping
    local apart=(unshare --pid --net --fork)
    "${apart[@]}" true 2>/dev/null || { echo 'skipped: this user may not make namespaces'; exit 77; }
    "${apart[@]}" "${as_nobody[@]}" "$work/rcverbs-fabric" run -q --node 1 timeout -k 5 60 rping -s -V -C 20 >"$work/server.out" 2>&1 &
    server=$!
    await listens 1 7174
    "${apart[@]}" "${as_nobody[@]}" "$work/rcverbs-fabric" run -q --node 2 timeout -k 5 60 rping -c -V -C 20 -a 10.77.0.1 >"$work/client.out" 2>&1 ||
        fail "the client ended with $?"
    wait "$server" || fail "the server ended with $?"
}
# Machines whose networks are joined over TCP: each has a directory of its own.
# at MACHINE COMMAND…
at() {
    local home=$work/$1
    shift
    [ -d "$home" ] || { mkdir -m 700 "$home" && { [ "$(id -u)" != 0 ] || chown 65534:65534 "$home"; }; }
    XDG_RUNTIME_DIR=$home "${as_nobody[@]}" "$@"
}
sees() { at "$1" "$work/rcverbs-fabric" list | grep -q "^$2 .*$3"; }
is_gone() { ! at "$1" "$work/rcverbs-fabric" list | grep -q "^$2 "; }
run_at() {
    local machine=$1
    shift
    at "$machine" "$work/rcverbs-fabric" run -q "$@"
}
# hub COMMAND…: on machine a, which the others join.
hub() {
    run_at a --listen "tcp:127.0.0.1:$tcp" timeout -k 5 60 "$@" >"$work/server.out" 2>&1 &
    server=$!
    await listens_tcp "$tcp"
}
joined() {
    need rping
    hub rping -s -P
    await sees a 1 'port 7174'
    local n
    # The second command of a machine finds the bridge of the first one, or is a new one.
    for n in 1 2; do
        run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -c -v -C 3 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail "client $n ended with $?"
        [ "$(grep -c 'ping data: rdma-ping' "$work/client.out")" = 3 ] || fail 'not three answers'
    done
    # A server of one machine that joined, and a client of another one. Two commands that join find one bridge.
    run_at b --join "tcp:127.0.0.1:$tcp" sleep 60 &
    await sees a 2 ''
    run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -s -C 3 >"$work/b.out" 2>&1 &
    local second=$!
    await sees a 3 'port 7174'
    run_at c --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -c -C 3 -a 10.77.0.3 >"$work/client.out" 2>&1 || fail "the third machine's client ended with $?"
    wait "$second" || fail "the server of the machine that joined ended with $?"
    await is_gone a 3
    await is_gone a 4
    run_at b --node 1 true 2>"$work/client.out" && fail 'a node of another machine was taken'
    grep -q 'node 1 is on another machine' "$work/client.out" || fail 'not the reason'
    run_at b --node 9 true 2>"$work/client.out" && fail 'a number was taken that another machine gives'
    run_at b --node 2 true || fail 'a command could not share a node of its machine'
    # A command of a machine that joined asks for its node there.
    run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 "$work/rcverbs-fabric" run -q sh -c 'sleep 1; echo $RCVERBS_FABRIC_ADDRESS' >"$work/client.out" 2>&1 || fail "the command ended with $?"
    grep -q '^10.77.0.4$' "$work/client.out" || fail 'it is not the next node of the other machine'
}
bench() {
    serve 1 "$work/rdma-bench" server
    await listens 1 7472
    local test
    for test in write read send write-imm; do
        on 2 "$work/rdma-bench" client 10.77.0.1 7472 "$test" --verify --bidirectional -s 8,64K -d 16 -n 2000 >"$work/client.out" 2>&1 || fail "$test ended with $?"
    done
    for test in fetch-add compare-swap; do
        on 2 "$work/rdma-bench" client 10.77.0.1 7472 "$test" --verify -n 2000 >"$work/client.out" 2>&1 || fail "$test ended with $?"
    done
    on 2 "$work/rdma-bench" client 10.77.0.1 7472 connect -c 50 -D 1s >"$work/client.out" 2>&1 || fail "connect ended with $?"
}
# A process that is stopped for longer than its peer waits for an acknowledgement: what is sent again has arrived in part.
a_stopped_process() {
    serve 1 "$work/rdma-bench" server
    await listens 1 7472
    local process i client
    process=$(fabric list | sed -nE 's/^1 .* ([0-9]+) rdma-bench .*/\1/p')
    on 2 "$work/rdma-bench" client 10.77.0.1 7472 write --verify -s 1M -D 3s >"$work/client.out" 2>&1 &
    client=$!
    for i in 1 2 3; do
        sleep 0.5
        kill -STOP "$process"
        sleep 0.5
        kill -CONT "$process"
    done
    wait "$client" || fail "the client ended with $?"
}
joined_copy() {
    mkdir "$work/from" "$work/to"
    local n
    for n in 1 2 3 4 5; do head -c 3000000 /dev/urandom >"$work/from/$n"; done
    [ "$(id -u)" != 0 ] || chown -R 65534:65534 "$work/from" "$work/to"
    hub "$work/rdma-copy" serve "$work/to"
    await sees a 1 'port'
    run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 "$work/rdma-copy" "$work/from/" 10.77.0.1:/ >"$work/client.out" 2>&1 || fail "rdma-copy ended with $?"
    diff -r "$work/from" "$work/to/from" || fail 'a file differs'
}
# The end of a process, and of a bridge, is heard on the other machine.
joined_ends() {
    need rping
    hub rping -s -P
    await sees a 1 'port 7174'
    run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -c -V -C 1000000 -a 10.77.0.1 >"$work/client.out" 2>&1 &
    local client=$!
    await sees a 2 elsewhere
    sleep 0.3
    at a "$work/rcverbs-fabric" kill 2 >"$work/kill.out" 2>&1 && fail 'a process of another machine was killed'
    at b "$work/rcverbs-fabric" kill 2 || fail 'the client was not killed'
    wait "$client"
    await is_gone a 2
    await grep -q DISCONNECT "$work/server.out"
    run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -c -V -C 1000000 -a 10.77.0.1 >"$work/client.out" 2>&1 &
    client=$!
    await sees a 2 elsewhere
    sleep 0.3
    at a "$work/rcverbs-fabric" kill 1 || fail 'the server was not killed'
    wait "$client"
    [ $? != 124 ] || fail 'the client hangs'
    grep -q DISCONNECT "$work/client.out" || fail 'the client did not hear of the end'
    wait "$server"
    await is_gone b 1
    # Nothing runs any more: no bridge is left.
    await no_bridge
}
no_bridge() { [ -z "$(left)" ]; }
# Two containers whose programs share nothing but TCP ports of the host: each has its own processes and its own directory.
joined_containers() {
    need rping
    local apart=(unshare --pid --fork --kill-child)
    "${apart[@]}" true 2>/dev/null || { echo 'skipped: this user may not make namespaces'; exit 77; }
    at a true
    at b true
    XDG_RUNTIME_DIR=$work/a "${apart[@]}" "${as_nobody[@]}" "$work/rcverbs-fabric" run -q --listen "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -s -V -C 20 >"$work/server.out" 2>&1 &
    server=$!
    await sees a 1 'port 7174'
    XDG_RUNTIME_DIR=$work/b "${apart[@]}" "${as_nobody[@]}" "$work/rcverbs-fabric" run -q --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -c -V -C 20 -a 10.77.0.1 >"$work/client.out" 2>&1 ||
        fail "the client ended with $?"
    wait "$server" || fail "the server ended with $?"
}
joined_wrongly() {
    need rping
    local status
    run_at b --join "tcp:127.0.0.1:$tcp" true >"$work/client.out" 2>&1 && fail 'nobody listens, and it joined'
    grep -q "tcp:127.0.0.1:$tcp: Connection refused\$" "$work/client.out" || fail 'the reason is not said'
    grep -q "tcp:127.0.0.1:$tcp: .*refused" "$work/client.out" || fail 'not the reason'
    run_at b --join somewhere true >"$work/client.out" 2>&1
    [ $? = 2 ] || fail 'a wrong address is not a wrong use'
    run_at b --listen tcp:127.0.0.1:99999 true >"$work/client.out" 2>&1
    [ $? = 2 ] && grep -q 'there is no port 99999' "$work/client.out" || fail 'a wrong port is not a wrong use'
    hub rping -s -P
    run_at c --listen "tcp:127.0.0.1:$tcp" true >"$work/client.out" 2>&1 && fail 'two listen at one port'
    grep -q 'in use' "$work/client.out" || fail 'not the reason'
    # Both networks have a node 1.
    run_at b --node 1 sleep 60 &
    local other=$!
    await sees b 1 ''
    run_at b --join "tcp:127.0.0.1:$tcp" true >"$work/client.out" 2>&1 && fail 'two nodes have one number'
    [ "$(grep -c 'both networks have a node 1' "$work/client.out")" = 1 ] || fail 'the reason is not said once'
    kill "$other"
    kill -0 "$server" || fail 'the server has ended'
}
a_hostile_machine() {
    need rping
    need /usr/bin/python3
    hub rping -s -P
    await sees a 1 'port 7174'
    cp "$here/hostile_machine.py" "$work/"
    timeout 60 "${as_nobody[@]}" /usr/bin/python3 "$work/hostile_machine.py" "$tcp" "$("$work/rcverbs-fabric" --version)" >"$work/hostile.out" 2>&1 || fail 'the hostile machine was not refused'
    kill -0 "$server" || fail 'the server has ended'
    run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -c -C 3 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail "the client ended with $?"
}
# What crosses the network, as Wireshark sees it; and the checksum of each frame, by another implementation.
capture() {
    need rping
    need tshark
    need /usr/bin/python3
    local file=$work/run/packets.pcap
    fabric run -q --node 1 --pcap "$file" timeout -k 5 60 rping -s -S 6001 -C 2 >"$work/server.out" 2>&1 &
    server=$!
    await listens 1 7174
    fabric run -q --node 2 --pcap "$file" timeout -k 5 60 rping -c -S 6001 -C 2 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail "the client ended with $?"
    wait "$server" || fail "the server ended with $?"
    tshark -r "$file" >"$work/seen.out" 2>/dev/null || fail 'tshark cannot read the file'
    local what
    for what in 'CM: ConnectRequest' 'CM: ConnectReply' 'CM: ReadyToUse' 'CM: DisconnectRequest' 'RC Send Only' 'RC Acknowledge' 'RC RDMA Read Request' 'RC RDMA Read Response First' 'RC RDMA Write First' 'RC RDMA Write Last'; do
        grep -q "RRoCE .*$what\b" "$work/seen.out" || fail "no $what"
    done
    [ -z "$(tshark -r "$file" -Y _ws.malformed 2>/dev/null)" ] || fail 'a frame is malformed'
    /usr/bin/python3 - "$file" <<'PYTHON' || fail 'a checksum is wrong'
import struct, sys, zlib
data = open(sys.argv[1], "rb").read()
at, count = 24, 0
while at < len(data):
    size = struct.unpack_from("<I", data, at + 8)[0]
    frame = data[at + 16:at + 16 + size]
    at += 16 + size
    ip = bytearray(frame[14:-4])
    for i in (1, 8, 10, 11, 26, 27, 32):
        ip[i] = 0xFF
    assert zlib.crc32(b"\xff" * 8 + bytes(ip)).to_bytes(4, "little") == frame[-4:], count
    assert len(frame) - 14 == struct.unpack_from(">H", frame, 16)[0], count
    count += 1
assert count >= 20, count
PYTHON
}
# "Receiver not ready" and what follows, as Wireshark sees it.
late_receive() {
    need tshark
    /usr/bin/python3 -c 'import pyverbs' 2>/dev/null || { echo 'skipped: pyverbs is not installed'; exit 77; }
    local file=$work/run/packets.pcap gid=0000:0000:0000:0000:0000:ffff:0a4d:000
    cp "$here/late_receive.py" "$work/"
    fabric run -q --node 1 --pcap "$file" timeout -k 5 60 /usr/bin/python3 "$work/late_receive.py" receiver sender "${gid}2" >"$work/server.out" 2>&1 &
    server=$!
    fabric run -q --node 2 --pcap "$file" timeout -k 5 60 /usr/bin/python3 "$work/late_receive.py" sender receiver "${gid}1" >"$work/client.out" 2>&1 || fail "the sender ended with $?"
    wait "$server" || fail "the receiver ended with $?"
    tshark -r "$file" -T fields -e infiniband.bth.opcode -e infiniband.bth.psn -e infiniband.aeth.syndrome.opcode >"$work/seen.out" 2>/dev/null
    # SEND Only (4) at least twice, with one sequence number; RNR Nak (1) in Acknowledge (17) at least once; then Ack (0).
    [ "$(grep -c '^4.0' "$work/seen.out")" -ge 2 ] || fail 'the message was not sent again'
    grep -q '^17.0.1' "$work/seen.out" || fail 'no RNR Nak'
    [ "$(tail -n 1 "$work/seen.out" | tr '\t' ' ')" = '17 0 0' ] || fail 'the last packet is no acknowledgement'
}
# What a program has acknowledged, or has received, does not depend on whether it or its peer lives on.
last_words() {
    need /usr/bin/python3
    /usr/bin/python3 -c 'import pyverbs' 2>/dev/null || { echo 'skipped: pyverbs is not installed'; exit 77; }
    cp "$here/last_words.py" "$here/frames.py" "$work/"
    local case
    for case in acknowledges acknowledged; do
        serve 1 /usr/bin/python3 "$work/last_words.py" "$case" program
        await [ -e "$work/run/number" ]
        "${as_nobody[@]}" timeout -k 5 60 /usr/bin/python3 "$work/last_words.py" "$case" peer "$XDG_RUNTIME_DIR/rcverbs/default" >"$work/client.out" 2>&1 ||
            fail "$case: the peer ended with $?"
        wait "$server" || fail "$case: the program ended with $?"
        rm "$work/run"/{number,connected,sent,done}
    done
}
last_message() {
    need /usr/bin/python3
    /usr/bin/python3 -c 'import pyverbs' 2>/dev/null || { echo 'skipped: pyverbs is not installed'; exit 77; }
    cp "$here/last_message.py" "$work/"
    both 7777 /usr/bin/python3 "$work/last_message.py" server 10.77.0.1 -- /usr/bin/python3 "$work/last_message.py" client 10.77.0.1
}
# UCX's transport over reliable connections; those above it need unreliable datagrams.
ucx() {
    need ucx_perftest
    local test
    for test in am_lat put_bw put_lat fadd cswap; do
        both tcp ucx_perftest -p "$tcp" -d fab0:1 -x rc_verbs -t "$test" -n 200 -w 10 -- ucx_perftest -p "$tcp" 127.0.0.1 -d fab0:1 -x rc_verbs -t "$test" -n 200 -w 10
    done
    both tcp ucx_perftest -p "$tcp" -d fab0:1 -x rc_verbs -t get -D zcopy -s 65536 -n 100 -- ucx_perftest -p "$tcp" 127.0.0.1 -d fab0:1 -x rc_verbs -t get -D zcopy -s 65536 -n 100
}
compared=infiniband
# step_through FILE PORT [OPTION…] -- SERVER… -- CLIENT…: in stepped time; FILE gets the packets in their order, and the client's status.
step_through() {
    local file=$work/run/$1 port=$2 options=() words=()
    shift 2
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    fabric run -q --stepped --pcap "$file.pcap" --node 1 "${options[@]}" timeout -k 5 60 "${words[@]}" >"$work/server.out" 2>&1 &
    server=$!
    await listens 1 "$port"
    fabric run -q --pcap "$file.pcap" timeout -k 5 60 "$@" >"$work/client.out" 2>&1
    local status=$?
    # A server that serves on.
    case ${words[1]} in serve) fabric kill 1 ;; esac
    wait "$server" 2>/dev/null
    tshark -r "$file.pcap" -Y "$compared" -T fields -e ip.src -e infiniband.bth.opcode -e infiniband.bth.destqp -e infiniband.bth.psn >"$work/$(basename "$file").out" 2>/dev/null
    rm -f "$file.pcap"
    echo "the client ended with $status" >>"$work/$(basename "$file").out"
}
# same_again PORT [OPTION…] -- SERVER… -- CLIENT…: the same seed, the same packets.
same_again() {
    step_through first "$@"
    step_through second "$@"
    cmp "$work/first.out" "$work/second.out" || fail 'another order'
}
stepped() {
    need rping
    need tshark
    same_again 7174 --seed 7 -- rping -s -C 3 -- rping -c -C 3 -a 10.77.0.1
    # Each ping: four messages and what belongs to them.
    (($(grep -c '^10.77' "$work/first.out") >= 30)) || fail 'too few packets'
    # Ten connections at once: another seed, another order.
    same_again 7471 --seed 7 -- ucmatose -c 10 -C 5 -- ucmatose -c 10 -C 5 -s 10.77.0.1
    step_through other 7471 --seed 8 -- ucmatose -c 10 -C 5 -- ucmatose -c 10 -C 5 -s 10.77.0.1
    cmp -s "$work/first.out" "$work/other.out" && fail 'the seed decides nothing'
    cmp <(sort "$work/first.out") <(sort "$work/other.out") || fail 'other packets'
    # Its two sides also tell each other through TCP when to disconnect, which no step waits for.
    compared='infiniband.bth.opcode < 0x20'
    # Who polls a completion queue, and who waits for its memory to change.
    need ib_send_lat
    same_again 18515 --seed 7 -- ib_send_lat -R -n 20 -- ib_send_lat -R -n 20 10.77.0.1
    same_again 18515 --seed 7 -- ib_write_lat -R -n 5 -- ib_write_lat -R -n 5 10.77.0.1
    # More than sockets take at once.
    same_again 18515 --seed 7 -- ib_write_bw -R -n 20 -- ib_write_bw -R -n 20 10.77.0.1
    compared=infiniband
    # What is lost is lost again.
    same_again 7174 --seed 7 --loss 0.1 -- rping -s -C 3 -- rping -c -C 3 -a 10.77.0.1
}
stepped_kills() {
    need rping
    need tshark
    local n
    for n in 1 2 5 8; do
        same_again 7174 --seed 3 --kill "1@$n" -- rping -s -C 2 -- rping -c -C 2 -a 10.77.0.1
    done
    "${as_nobody[@]}" mkdir "$work/run/to"
    "${as_nobody[@]}" cp /etc/passwd "$work/run/small"
    for n in 1 3 6; do
        same_again 7472 --seed 3 --kill "1@$n" -- "$work/rdma-copy" serve "$work/run/to" --port 7472 -- "$work/rdma-copy" --port 7472 --timeout 5 "$work/run/small" 10.77.0.1:
        rm -rf "$work/run/to"/* "$work/run/to"/.[!.]*
    done
}
# The network's thread hears of a packet that is due although another thread polls meanwhile.
refused_each_time() {
    local i code
    for i in $(seq 20); do
        on 1 "$work/rdma-client" write 10.77.0.1 1 >"$work/client.out" 2>&1
        code=$?
        [ $code = 3 ] || fail "attempt $i ended with $code"
    done
}
# A port that one process has released is not at once another's: somebody may still connect to it.
chosen_ports() {
    need /usr/bin/python3
    local i
    for i in $(seq 10); do
        on 1 /usr/bin/python3 -c '
import ctypes, socket
rdma = ctypes.CDLL("librdmacm.so.1")
rdma.rdma_get_src_port.restype = ctypes.c_uint16
identifier = ctypes.c_void_p()
assert rdma.rdma_create_id(None, ctypes.byref(identifier), None, 0x106) == 0
address = (2).to_bytes(2, "little") + bytes([0, 0, 10, 77, 0, 1]) + bytes(8)
assert rdma.rdma_bind_addr(identifier, address) == 0
print(socket.ntohs(rdma.rdma_get_src_port(identifier)))' >>"$work/ports.out" || fail 'no port'
    done
    [ "$(sort -un "$work/ports.out" | wc -l)" -ge 9 ] || fail 'the same ports'
    awk '$1 < 32768 || $1 > 60999 { exit 1 }' "$work/ports.out" || fail 'a port outside of the range'
}
# A program that computes on has begun something while its network was asked what could be done next.
stepped_busily() {
    cat >"$work/busy.py" <<'PYTHON'
import ctypes, os, time

def compute(until):
    while not until():
        pass

def compute_for(seconds):
    end = time.process_time() + seconds
    compute(lambda: time.process_time() > end)

rdma = ctypes.CDLL("librdmacm.so.1")
rdma.rdma_create_event_channel.restype = ctypes.c_void_p
channel = ctypes.c_void_p(rdma.rdma_create_event_channel())
identifier = ctypes.c_void_p()
assert rdma.rdma_create_id(channel, ctypes.byref(identifier), None, 0x106) == 0
# struct sockaddr_in of 10.77.0.2
address = (2).to_bytes(2, "little") + (7174).to_bytes(2, "big") + bytes([10, 77, 0, 2]) + bytes(8)
compute(lambda: os.path.exists("asked"))
compute_for(0.1)
assert rdma.rdma_resolve_addr(identifier, None, address, 2000) == 0
compute_for(0.1)
open("called", "w").close()
compute_for(0.2)
event = ctypes.c_void_p()
assert rdma.rdma_get_cm_event(channel, ctypes.byref(event)) == 0
PYTHON
    # Another process, whose answer comes after that.
    cat >"$work/slow.py" <<'PYTHON'
import fcntl, os, socket, struct, sys, time
message = struct.Struct("<BBxxIi4I4xQqq")
hello, query, answer = 0, 2, 3
network = os.environ["XDG_RUNTIME_DIR"] + "/rcverbs/default"
slot = os.open(network + "/2.1.lock", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.fcntl(slot, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
os.write(slot, b"%d 1\n" % os.getpid())
stepper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
stepper.connect(network + "/stepper")
stepper.send(message.pack(hello, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0))
open("joined", "w").close()
while order := stepper.recv(100):
    if order[0] != query:
        continue
    if os.path.exists("begun"):
        open("asked", "w").close()
        while not os.path.exists("called"):
            time.sleep(0.01)
    stepper.send(message.pack(answer, 0, 0, os.getpid(), 0, 0, 0, 0, 0, 0, -1))
PYTHON
    fabric run -q --stepped --seed 7 --node 2 timeout -k 5 60 /usr/bin/python3 "$work/slow.py" >"$work/server.out" 2>&1 &
    await [ -e joined ]
    : >begun
    fabric run -q --node 3 timeout -k 5 20 /usr/bin/python3 "$work/busy.py" >"$work/client.out" 2>&1 || fail "the program ended with $?"
}
stepped_wrongly() {
    need rping
    fabric run -q --stepped --join tcp:127.0.0.1:1 true >"$work/client.out" 2>&1
    [ $? = 2 ] || fail 'a stepped network joins another one'
    on 2 sleep 60 &
    await has_node 2
    fabric run -q --stepped true >"$work/client.out" 2>&1 && fail 'a network in use is stepped'
    grep -q 'in use' "$work/client.out" || fail 'not the reason'
    fabric run -q --stepped --seed 7 --network other sleep 60 &
    await eval 'fabric list --network other | grep -q "^1 "'
    fabric run -q --listen "tcp:127.0.0.1:$tcp" --network other true >"$work/client.out" 2>&1 && fail 'a stepped network listens'
    grep -q 'a stepped network is joined by no other one' "$work/client.out" || fail 'not the reason'
    fabric run -q --stepped --seed 8 --network other true >"$work/client.out" 2>&1 && fail 'two seeds'
    grep -q 'has --seed 7' "$work/client.out" || fail 'not the reason'
    # It goes on beside those who say nothing, or nonsense, to its stepper.
    "${as_nobody[@]}" /usr/bin/python3 - "$XDG_RUNTIME_DIR/rcverbs/other/stepper" <<'PYTHON' &
import os, socket, sys, time
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    return s
silent = [connect() for _ in range(20)]
for what in (b"x", os.urandom(72), bytes(72), os.urandom(4000)):
    s = connect()
    s.settimeout(5)
    s.send(what)
    assert s.recv(1) == b"", what
open("nonsense", "w").close()
time.sleep(60)
PYTHON
    await [ -e "$work/run/nonsense" ]
    # It goes on while a process is stopped, and ends with the last command.
    fabric run -q --network other --node 3 timeout -k 5 60 rping -s -C 1 >"$work/server.out" 2>&1 &
    server=$!
    await eval 'fabric list --network other | grep -q "port 7174"'
    fabric run -q --network other --node 4 timeout -k 5 60 rping -s -P -p 7175 &
    await eval 'fabric list --network other | grep -q "port 7175"'
    kill -STOP "$(fabric list --network other | sed -n 's/^4 .*  \([0-9]*\) rping.*/\1/p')" || fail 'nothing to stop'
    fabric run -q --network other timeout -k 5 60 rping -c -C 1 -a 10.77.0.3 >"$work/client.out" 2>&1 || fail "the client ended with $?"
    wait "$server" || fail "the server ended with $?"
}
pyverbs() {
    need /usr/bin/python3
    /usr/bin/python3 -c 'import pyverbs' 2>/dev/null || { echo 'skipped: python3-pyverbs is not installed'; exit 77; }
    cp "$here/pyverbs_test.py" "$work/"
    fabric run -q timeout -k 5 60 /usr/bin/python3 "$work/pyverbs_test.py" >"$work/client.out" 2>&1 || fail "the test ended with $?"
}
libfabric() {
    need fi_pingpong
    both tcp fi_pingpong -p verbs -e msg -I 100 -B "$tcp" -- fi_pingpong -p verbs -e msg -I 100 -P "$tcp" 127.0.0.1
}
# Writes and reads of remote memory by libfabric.
libfabric_rma() {
    echo '#include <rdma/fi_rma.h>' | cc -E - >/dev/null 2>&1 || { echo 'skipped: libfabric-dev is not installed'; exit 77; }
    cc -O1 -Wall -Wextra -Werror -o "$work/fi_rma" "$here/fi_rma.c" -lfabric || fail 'fi_rma.c does not compile'
    both 18600 "$work/fi_rma" 18600 -- "$work/fi_rma" 18600 10.77.0.1
}
# A bridge of earlier commands that ends now: it gives no node any more, and the next command begins one.
joined_again() {
    need rping
    need /usr/bin/python3
    hub rping -s -P
    await sees a 1 'port 7174'
    at b "$work/rcverbs-fabric" run -q true || fail 'no directory'
    at b /usr/bin/python3 - "$work/b/rcverbs/default" <<'PYTHON' &
import fcntl, os, socket, struct, sys, time
os.chdir(sys.argv[1])
lock = open('bridge.lock', 'a')
fcntl.lockf(lock, fcntl.LOCK_EX)
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind('bridge')
door.listen(1)
door.accept()[0].close()
os.unlink('bridge')
time.sleep(0.3)
PYTHON
    await test -S "$work/b/rcverbs/default/bridge"
    run_at b --join "tcp:127.0.0.1:$tcp" timeout -k 5 60 rping -c -v -C 3 -a 10.77.0.1 >"$work/client.out" 2>&1 || fail "the client ended with $?"
}
# Plain C calls, which compare devices, on this one.
behaviour() {
    [ -x "$built/device_behaviour_tests" ] || fail 'device_behaviour_tests is not built'
    cp "$built/device_behaviour_tests" "$work/"
    # shellcheck disable=SC2016 # of the node
    fabric run -q sh -c 'RCVERBS_TEST_ADDRESS=$RCVERBS_FABRIC_ADDRESS RCVERBS_TEST_ADDRESS6=$RCVERBS_FABRIC_ADDRESS6 timeout -k 5 300 "$1"' sh \
        "$work/device_behaviour_tests" >"$work/client.out" 2>&1 || fail "the tests ended with $?"
}

[[ " $(echo $cases) " == *" $name "* ]] || fail 'no such case'
"$name"
