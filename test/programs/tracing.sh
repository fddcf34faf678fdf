#!/usr/bin/env bash
# tracing.sh PROGRAMS: the scripts of docs/tracing answer their questions about a program that runs, and the guide lists the probes that it
# has. Needs root, bpftrace, and an RDMA device with the address 10.0.0.1.
set -uo pipefail
programs=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
complain() { echo "tracing: $*" >&2; status=1; }

has=$(readelf -n "$programs"/{messages_bench,rdma-nvme} | awk '/Provider: rcverbs/ { getline; print $2 }' | sort -u)
if [ -z "$has" ]; then
    echo "skipped: the programs have no probes: they were built without sys/sdt.h (package systemtap-sdt-dev)"
    exit 77
fi
if ! command -v bpftrace >/dev/null; then
    echo "skipped: bpftrace is not installed"
    exit 77
fi

# The provider's probes, of the binary and of the guide.
said=$(sed -n 's/^| `\([a-z_]*\)` | .*/\1/p' "$here/docs/guides/tracing.md" | sort -u)
[ "$has" = "$said" ] || complain "probes: $(diff <(echo "$has") <(echo "$said"))"

[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing

# trace SCRIPT COMMAND…: runs a command under a script; prints what the script found.
trace() {
    local script=$1
    shift
    "$here/docs/tracing/trace" "$script" "$1" "$@" >"$work/out" 2>&1 || complain "$script: $(tail -3 "$work/out")"
    cat "$work/out"
}

found=$(trace latency "$programs/rdma-bench" loopback write --address 10.0.0.1 --sizes 8 --iterations 2000 --depth 16)
grep -q '@nanoseconds\[10.0.0.1\]' <<<"$found" || complain "latency.bt found: $found"
sum=$(awk '/^@nanoseconds/ { inside = 1; next } inside && /\|/ { sub(/.*\) +/, ""); sum += $1 } END { print sum + 0 }' <<<"$found")
# The 2000, and those of the control connection and the warm-up.
[ "$sum" -ge 2000 ] || complain "latency.bt counted $sum of 2000 operations"

found=$(trace connect-steps "$programs/rdma-bench" loopback connect --address 10.0.0.1 --connections 20 --duration 100ms)
for what in 'resolve address' 'resolve route' 'connect' 'accept'; do
    grep -q "@microseconds\[$what\]" <<<"$found" || complain "connect-steps.bt found no step $what: $found"
done
grep -q '@ended\[' <<<"$found" || complain "connect-steps.bt saw no end: $found"

"$programs/messages_bench" server echo 10.0.0.1 --size 64 --count 4000 --depth 256 >"$work/port" &
server=$!
until grep -q 'listens on' "$work/port"; do sleep 0.1; done
found=$(trace credits "$programs/messages_bench" client echo 10.0.0.1 "$(awk '{ print $NF }' "$work/port")" --size 64 --count 4000 --depth 256)
wait "$server"
grep -q '@waited_total_us\[10.0.0.1\]' <<<"$found" || complain "credits.bt found nobody: $found"

[ $status = 0 ] && echo "tracing: three scripts, $(wc -l <<<"$has") probes"
exit $status
