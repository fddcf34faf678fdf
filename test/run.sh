#!/usr/bin/env bash
# run.sh: installs what is missing, builds, runs every test, and prints the counts. Exits 0 only if all passed.
#
# Tests that need an RDMA device run on this machine's own if one is usable, else in the SoftRoCE virtual machine.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/.."

logs=build/test-logs
passed=0 failed=0 skipped=0 broken=()

# step NAME COMMAND…: runs a command that must succeed; its time is printed.
step() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    if ! "$@"; then
        broken+=("$name")
        echo "== $name FAILED"
        return 1
    fi
    echo "== $name: $((SECONDS - start)) s"
}

# count LOG: adds a ctest run's closing line to the totals; a run without one did not come to its end.
count() {
    local line bad all left_out
    line=$(grep -aE '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$1" | tail -n 1)
    [ -n "$line" ] || return 1
    bad=$(sed -E 's/.*passed, ([0-9]+) tests failed.*/\1/' <<<"$line")
    all=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$line")
    # A test that could not do its work for want of something says so and why; it is not counted as passed.
    left_out=$(grep -acE '\*\*\*Skipped' "$1")
    grep -aE '\*\*\*Skipped|warning: *$|^ *skipped: ' "$1" || true
    passed=$((passed + all - bad - left_out))
    failed=$((failed + bad))
    skipped=$((skipped + left_out))
}

# tests NAME COMMAND…: runs ctest, natively or inside the virtual machine, and counts.
tests() {
    local name=$1 log start=$SECONDS status=0
    shift
    log=$logs/${name// /-}.log
    echo "== $name"
    "$@" >"$log" 2>&1 || status=$?
    if ! count "$log" || { [ $status != 0 ] && ! grep -qa 'tests failed out of' "$log"; }; then broken+=("$name"); fi
    if [ $status != 0 ]; then
        cat "$log"
        [ ${#broken[@]} != 0 ] || [ $failed != 0 ] || broken+=("$name")
    fi
    grep -aE 'tests passed, [0-9]+ tests failed out of' "$log" | tail -n 1
    echo "== $name: $((SECONDS - start)) s"
}

on_device() {
    if [ -n "$device" ]; then
        # What only the virtual machine's network has is not looked for here: see test/device/fixture.hpp.
        RCVERBS_TEST_ADDRESS=$address RCVERBS_TEST_ADDRESS6=${address6#-} "$@"
    else
        test/softroce/vm --memory 4096 -- "$@"
    fi
}

if device=$(test/softroce/usable-device); then
    read -r device address address6 <<<"$device"
    echo "tests: device tests run on this machine's RDMA device $device ($address)"
else
    device=''
    echo "tests: device tests run in the SoftRoCE virtual machine; this machine has no usable RDMA device"
fi

step "install what is missing" .ci/install-deps || exit 1
mkdir -p "$logs"
for preset in release asan tsan; do
    step "configure $preset" cmake --preset $preset >"$logs/configure-$preset.log" 2>&1 ||
        { cat "$logs/configure-$preset.log"; exit 1; }
    step "build $preset" cmake --build --preset $preset >"$logs/build-$preset.log" 2>&1 ||
        { cat "$logs/build-$preset.log"; exit 1; }
    tail -n 1 "$logs/build-$preset.log"
done

step "configure fuzz" cmake --preset fuzz >"$logs/configure-fuzz.log" 2>&1 || { cat "$logs/configure-fuzz.log"; exit 1; }
step "build fuzz" cmake --build --preset fuzz >"$logs/build-fuzz.log" 2>&1 || { cat "$logs/build-fuzz.log"; exit 1; }
tail -n 1 "$logs/build-fuzz.log"

# A report of a sanitizer's ends the test that it is about.
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
for preset in release asan tsan; do
    tests "unit $preset" ctest --test-dir build/$preset -LE 'device|hosts|vm|distribution' --output-on-failure --no-tests=error -j 2
done
tests "fuzz" ctest --test-dir build/fuzz -L fuzz --output-on-failure --no-tests=error -j 2
# The packages are compiled once: by the image, if there is a Docker engine.
tests "packages" env RCVERBS_PACKAGES="$PWD/build/packages" ctest --test-dir build/release -L distribution --output-on-failure --no-tests=error
tests "virtual machine" ctest --test-dir build/release -L vm --output-on-failure --no-tests=error
tests "device release" on_device ctest --test-dir build/release -L device --output-on-failure --no-tests=error
# The long ones repeat what the short ones do, a hundred times. Of the programs, which take seconds to start with a sanitizer, those
# tests that go the longest way; they are no less threaded than the tests beside them.
tests "device asan" on_device ctest --test-dir build/asan -L device -LE 'long|programs' --output-on-failure --no-tests=error
tests "programs asan" on_device ctest --test-dir build/asan -L programs --output-on-failure --no-tests=error \
    -R 'server and client say line for line|clients killed while they connect|a thousand times each|a damaged byte is found|the doctor says'
tests "device tsan" on_device ctest --test-dir build/tsan -L device -LE 'long|programs' --output-on-failure --no-tests=error
# Two devices and a wire between them are the virtual machine's, whatever this machine has.
for preset in release tsan; do
    tests "hosts $preset" test/softroce/vm --topology pair --memory 4096 -- \
        ctest --test-dir build/$preset -L hosts --output-on-failure --no-tests=error
done

echo
if [ ${#broken[@]} != 0 ]; then
    printf 'did not run to the end: %s\n' "${broken[@]}"
    failed=$((failed + ${#broken[@]}))
fi
echo "$passed passed, $failed failed, $skipped skipped"
# The sum of ctest's closing lines, in ctest's words: what reads those reads this.
all=$((passed + failed + skipped))
printf '\n%d%% tests passed, %d tests failed out of %d\n\nTotal Test time (real) = %d.00 sec\n' \
    $((all > 0 ? (all - failed) * 100 / all : 0)) "$failed" "$all" "$SECONDS"
[ $failed = 0 ] && [ $all -gt 0 ]
