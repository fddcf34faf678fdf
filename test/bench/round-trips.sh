#!/usr/bin/env bash
# round-trips.sh [--limits] PROGRAM — counts the user-space instructions of one side for a message of 64 bytes and its echo, and for a request and
# its answer, beside raw verbs, on a loopback device. Fails if one takes more than its limit, or if it allocates. The number is the same on every
# run of one build. --limits: counts only what has a limit.
set -euo pipefail

is_check=no
if [ "${1:-}" = --limits ]; then
    is_check=yes
    shift
fi
program=$1
trips=1600
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# 5 % above what was measured.
declare -A most=(
    ["message client 16"]=4716 ["message client 1"]=5221
    ["message server 16"]=4906 ["message server 1"]=5441
    ["request client 16"]=5798 ["request client 1"]=6253
    ["request server 16"]=6198 ["request server 1"]=6787
)

# The program collects the instructions of one side, and dumps them at the end.
count() {
    local sums=$work/callgrind
    rm -f "$sums"*
    timeout 600 valgrind --tool=callgrind --collect-atstart=no --callgrind-out-file="$sums" \
        "$program" "$1" "$2" "$trips" "$3" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    echo $(($(sed -n 's/^totals: //p' "$sums.1") / trips))
}

failed=0
for side in client server; do
    for depth in 16 1; do
        if [ "$is_check" = no ]; then
            printf '%s, %2d in flight: raw verbs %5d instructions per round trip\n' "$side" "$depth" "$(count raw "$side" "$depth")"
        fi
        for loop in message request; do
            limit=${most["$loop $side $depth"]}
            cost=$(count "$loop" "$side" "$depth")
            printf '%s, %2d in flight: %s %5d instructions per round trip, at most %d\n' "$side" "$depth" "$loop" "$cost" "$limit"
            if ((cost > limit)); then
                echo "that is more than the limit" >&2
                failed=1
            fi
        done
    done
done
exit "$failed"
