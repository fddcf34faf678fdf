#!/usr/bin/env bash
# on_hardware.sh TREE [STEP…]: test/on-hardware with the programs of build/TREE between the two devices of a machine that `vm --topology pair` has
# started: these of its steps, or all. Prints each as ctest prints a test, and at the end the report of what failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
tree=$1 work=$(mktemp -d)
shift
export RCVERBS_BIN=$PWD/build/$tree/bin
# Soft iWARP counts locked memory of root, too.
ulimit -l unlimited
(cd "$RCVERBS_BIN" && ../../../test/softroce/into-memory bash ip rdma ./{device_tests,rdma-,example-}*)
test/on-hardware serve 10.0.0.1 >"$work/serve" 2>&1 &
server=$!
until grep -q '^serving at' "$work/serve"; do kill -0 $server || exit 1; sleep 0.1; done
ONLY="$*" test/on-hardware run 10.0.1.1 10.0.0.1 "$work/report" </dev/null | tee "$work/steps"
kill $server
wait $server 2>/dev/null
awk -v names="$(hostname)" '
    function line(name, verdict) { printf "%3d/%d Test #%d: on-hardware: %s ... %s\n", ++number, number, number, name, verdict; bad += verdict ~ /Failed/ }
    FILENAME ~ /steps$/ && /, [0-9]+ s$/ && $1 != "" && !/^ / {
        line($1, /skipped: / ? "***Skipped" : /FAILED/ ? "***Failed" : "Passed")
        if (/skipped: |expected/) print
    }
    # The report has no addresses and no names.
    FILENAME ~ /report$/ && (/10\.0\.[01]\.1/ || index($0, names)) { named = named "\n" $0 }
    END {
        line("nothing in the report names a host", named == "" ? "Passed" : "***Failed" named)
        printf "%d%% tests passed, %d tests failed out of %d\n", 100 * (number - bad) / number, bad, number
        exit bad > 0
    }' "$work/steps" "$work/report"
status=$?
if [ $status != 0 ]; then cat "$work/report" "$work/serve"; fi
exit $status
