#!/usr/bin/env bash
# instructions.sh [--limits] PROGRAM — counts the user-space instructions of one signaled 8-byte write, in raw verbs and with each form of the library,
# on a null device. Fails if the library adds more than more_max to a write with a callback, if a write through remote_memory takes over
# remote_more_max more than one of its connection, if the library makes one system call or more per hundred operations, or if it allocates.
# Instructions, not time: their number is the same on every run of one build, except for polls that find nothing, of which a busy host causes more. So
# the limit applies to the least of three runs. --limits: checks, and counts nothing that is only printed.
set -euo pipefail

loops='raw callback deferred coroutine awaited concrete_callback concrete_coroutine concrete_awaited' depths='16 1'
if [ "$1" = --limits ]; then
    loops='raw callback' depths=16
    shift
fi
program=$1
more_max=300
remote_more_max=206
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Counts the instructions of the operations with valgrind: the program resets the counter before them and dumps it after them.
count() {
    local sums=$work/callgrind
    rm -f "$sums"*
    # Fair scheduling, since a polling thread would leave no time to the others.
    timeout 600 valgrind --fair-sched=yes --tool=callgrind --callgrind-out-file="$sums" \
        "$program" count "$1" "$2" "$3" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    sed -n 's/^totals: //p' "$sums.1"
}

many=100000
# least LOOP KNOWN: the least of KNOWN and of two more runs with 16 in flight.
least() {
    local all=$2 again
    for _ in 1 2; do
        again=$(($(count "$1" "$many" 16) / many))
        if ((again < all)); then all=$again; fi
    done
    echo "$all"
}
for depth in $depths; do
    declare -A cost
    for loop in $loops; do
        cost[$loop]=$(($(count "$loop" "$many" "$depth") / many))
        printf '%2d in flight: %-18s %5d instructions per operation, %+d to raw verbs\n' \
            "$depth" "$loop" "${cost[$loop]}" $((cost[$loop] - cost[raw]))
    done
    # The limit applies with several operations in flight; with one, each operation pays for a whole round of the poller.
    if ((depth == 16)); then
        more=$(($(least callback "${cost[callback]}") - cost[raw]))
        echo "the least of three runs: a callback costs $more more than raw verbs"
    fi
done
# Through memory that a region channel has found, beside the channel's connection.
direct=$(($(count remote_plain "$many" 16) / many))
remote=$(($(count remote_callback "$many" 16) / many))
remote_more=$(($(least remote_callback "$remote") - $(least remote_plain "$direct")))
echo "16 in flight: a write through remote_memory costs $remote_more more than one of its connection, which costs $direct"
# System calls of the loop alone, between its two marks: outside of them the polling thread spins for an unpredictable time. A call that
# blocks has a second line for its result. Reading the clock is a system call only under valgrind, which has no vDSO.
calls=$(
    timeout 600 valgrind --fair-sched=yes --tool=none --trace-syscalls=yes "$program" count callback 160000 16 2>&1 >/dev/null |
        LC_ALL=C awk '/^SYSCALL.* sys_getppid/ { inside = !inside; ++marks; next } inside && /^SYSCALL.* sys_/ && !/sys_clock_gettime/ { ++calls }
            END { print marks == 2 ? calls + 0 : "unknown" }'
)
echo "160000 operations take $calls system calls"
if [ "$calls" = unknown ] || ((calls > 1600)); then
    echo "that is more than one for a hundred operations" >&2
    exit 1
fi
# Checks the allocations, without valgrind, which is faster.
for loop in callback deferred coroutine awaited concrete_callback concrete_coroutine concrete_awaited remote_callback; do "$program" count "$loop" 160000 16; done
if ((more > more_max)); then
    echo "a callback costs $more instructions more than raw verbs, more than $more_max" >&2
    exit 1
fi
if ((remote_more > remote_more_max)); then
    echo "a write through remote_memory costs $remote_more more than one of its connection, more than $remote_more_max" >&2
    exit 1
fi
