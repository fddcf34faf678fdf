#!/usr/bin/env bash
# instructions.sh PROGRAM — what one signalled 8-byte write costs in user-space instructions, in raw verbs and by each form
# of the library's, on a device that does nothing. Fails if the library adds more than 300 to a write with a callback, if it
# calls the system for one operation in a hundred or more, or allocates. Instructions, not time: they are the same on every run of one build.
set -euo pipefail

program=$1
more_max=300
few=1600
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Instructions of so many operations, by valgrind: the program has what came before forgotten, and the sum written at their end.
count() {
    local sums=$work/callgrind
    rm -f "$sums"*
    # Its threads take turns, or one that polls would leave no turn to the others.
    timeout 100 valgrind --fair-sched=yes --tool=callgrind --callgrind-out-file="$sums" \
        "$program" count "$1" "$2" "$3" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    sed -n 's/^totals: //p' "$sums.1"
}

many=400000
for depth in 16 1; do
    declare -A cost
    for loop in raw callback deferred coroutine; do
        cost[$loop]=$(($(count "$loop" "$many" "$depth") / many))
        printf '%2d in flight: %-10s %5d instructions per operation, %+d to raw verbs\n' \
            "$depth" "$loop" "${cost[$loop]}" $((cost[$loop] - cost[raw]))
    done
    # What is judged is work with some of it in flight; one at a time, each pays for a whole round of the poller.
    if ((depth == 16)); then more=$((cost[callback] - cost[raw])); fi
done
# System calls of many operations and of few: what there is more of is the polling thread's, once in many rounds.
calls() {
    timeout 100 valgrind --fair-sched=yes --tool=none --trace-syscalls=yes "$program" count callback "$1" 16 2>&1 >/dev/null |
        grep -ac '^SYSCALL'
}
more_calls=$(($(calls 160000) - $(calls "$few")))
echo "160000 operations take $more_calls system calls more than $few"
if ((more_calls > (160000 - few) / 100)); then
    echo "that is more than one for a hundred operations" >&2
    exit 1
fi
# Without valgrind, and therefore quickly, for the allocations.
for loop in callback deferred coroutine; do "$program" count "$loop" 160000 16; done
if ((more > more_max)); then
    echo "a callback costs $more instructions more than raw verbs, more than $more_max" >&2
    exit 1
fi
