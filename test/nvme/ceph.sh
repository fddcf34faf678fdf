#!/usr/bin/env bash
# ceph.sh start FOLDER | osd FOLDER | stop FOLDER: a Ceph cluster for tests, of one monitor and one OSD on this machine, with keys and
# a pool `rbd`. All of it is in FOLDER; FOLDER/ceph.conf and FOLDER/keyring are what clients need. The OSD keeps its data in a file, and
# survives a kill: `osd` starts it again. Needs ceph-mon, ceph-osd and ceph-common.
set -euo pipefail
what=$1 folder=$2
conf=$folder/ceph.conf

is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

write_configuration() {
    local port=$((20000 + RANDOM % 10000 * 2)) fsid
    while ! is_free "$port" || ! is_free $((port + 1)); do port=$((port + 2)); done
    fsid=$(cat /proc/sys/kernel/random/uuid)
    cat >"$conf" <<CONF
[global]
fsid = $fsid
mon host = [v2:127.0.0.1:$port,v1:127.0.0.1:$((port + 1))]
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
auth allow insecure global id reclaim = false
run dir = $folder
admin socket = $folder/\$name.\$pid.asok
log file = $folder/\$name.log
pid file = $folder/\$name.pid
mon data = $folder/mon
osd data = $folder/osd
keyring = $folder/keyring
osd objectstore = bluestore
bluestore block create = true
bluestore block size = 1073741824
osd memory target = 939524096
[osd]
keyring = $folder/osd/keyring
[mon]
keyring = $folder/mon/keyring
CONF
    monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port,v1:127.0.0.1:$((port + 1))]" "$folder/monmap"
}

client() { timeout 300 "$1" -c "$conf" --id admin "${@:2}"; }

start() {
    # Ceph bypasses the page cache, which a file system in memory does not allow.
    if ! dd if=/dev/zero of="$folder/direct" bs=4096 count=1 oflag=direct 2>/dev/null; then
        modprobe loop
        truncate -s 1800M "$folder.img"
        mkfs.ext4 -q -O ^has_journal "$folder.img"
        mount "$(losetup --find --show "$folder.img")" "$folder"
    fi
    rm -f "$folder/direct"
    mkdir -p "$folder"/mon "$folder"/osd
    write_configuration
    ceph-authtool --create-keyring "$folder/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    ceph-authtool --create-keyring "$folder/mon.keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$folder/mon.keyring" --import-keyring "$folder/keyring"
    ceph-mon -i a -c "$conf" --mkfs --monmap "$folder/monmap" --keyring "$folder/mon.keyring"
    ceph-mon -i a -c "$conf"
    local osd
    osd=$(cat /proc/sys/kernel/random/uuid)
    client ceph osd new "$osd"
    client ceph auth get-or-create osd.0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' -o "$folder/osd/keyring"
    ceph-osd -i 0 -c "$conf" --mkfs --osd-uuid "$osd"
    ceph-osd -i 0 -c "$conf"
    client ceph osd pool create rbd 8
    client rbd pool init rbd
}

case $what in
start)
    exec 3>&2 >"$folder.log" 2>&1
    set -E
    trap 'cat "$folder.log" >&3' ERR
    start
    ;;
osd) ceph-osd -i 0 -c "$conf" >"$folder/osd.out" 2>&1 ;;
stop)
    for daemon in osd.0 mon.a; do
        if [ -f "$folder/$daemon.pid" ]; then kill -9 "$(cat "$folder/$daemon.pid")" 2>/dev/null || true; fi
    done
    rm -f "$folder.log"
    ;;
*) exit 2 ;;
esac
