#!/usr/bin/env bash
# run.sh: installs missing packages, builds, runs the tests, and prints the counts. Exits 0 only if all passed. See --help.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Each step: its name, whether only --all runs it, and a description. docs/internals/testing.md lists the defects that each step finds.
steps='
build-release     default  compile the programs, the device tests and the examples, optimised
build-asan        default  compile the library and the tests without a device with the address and undefined-behaviour sanitizers
device            default  the device tests on an RDMA device or in the SoftRoCE virtual machine
programs          default  the programs there
hostile           default  hostile peers there
hosts             default  two devices with a packet path between them: loss, delay, cut links, killed peers
unit-asan         default  every test that needs no device, with the sanitizers
checks            default  the programs without a device, documents, style, instruction counts, a program that uses the installed library
tidy              all      clang-tidy finds no bug in the library
headers           all      each public header compiles by itself
site              all      the documents as a site: no broken link, no page wider than a narrow window
build-tsan        all      compile all tests with the thread sanitizer
build-asan-device all      compile the device tests with the address and undefined-behaviour sanitizers
unit-release      all      every test that needs no device, optimised
unit-tsan         all      the same with the thread sanitizer
device-any        all      the device tests that are the same on any device, which the gate runs on the fabric only
device-fabric     all      the device tests on devices of the fabric, each in a process of its own
device-smp        all      the device tests and the programs on two processors, in plain time
hosts-smp         all      two devices, the same
slow0-seed1       all      the programs and hostile peers in the deterministic machine, 16 times faster than the gate
slow2-seed2       all      the same, 4 times faster, from another start
slow3-seed3       all      the same, 2 times faster, from another start
slow5-seed4       all      the same, half as fast, from another start
device-long       all      the device tests that repeat what the others do, a hundred times
boost-1.88        all      every test that needs no device with the Boost of Debian 13, without deprecated interfaces of Asio
device-asan       all      the device tests with the address and undefined-behaviour sanitizers
programs-asan     all      the longest ways of the programs, with the same
device-tsan       all      the device tests with the thread sanitizer
hosts-tsan        all      two devices, with the thread sanitizer
fuzz              all      arbitrary bytes for everything that a peer or a person may say (clang, libFuzzer)
packages          all      Debian packages in a fresh installation, Docker images and compose file
nvme              all      the Linux kernel as the initiator of rdma-nvme: disks, file systems, killed targets, cut links
ceph              all      disks in a Ceph cluster: on this machine, and with the kernel as the initiator
device-612        all      the device tests on the SoftRoCE of Linux 6.12
programs-612      all      the programs there
hostile-612       all      hostile peers there
hosts-612         all      two devices there
nvme-612          all      the kernel of Linux 6.12 as the initiator of rdma-nvme, which can authenticate
on-hardware       all      what a stranger runs between two hosts with adapters, here between two devices: demo, copies, perftest, a disk
siw               all      the device tests on Soft iWARP, another provider of the kernel, and what a stranger runs there
virtual-machine   all      the SoftRoCE virtual machine itself, perftest beside rdma-bench, docs/start.md to the letter
'

usage() {
    cat <<'TEXT'
Usage: test/run.sh [--all] [--only STEP]... [--list] [--help]

Installs what is missing, builds, and runs the tests: without --all the gate that every change must pass, which is every behaviour
once, and the address and undefined-behaviour sanitizers over everything that needs no device. Tests that need an RDMA device run on
this machine's own if one is usable, else in the SoftRoCE virtual machine.

  --all         the gate and everything else: also the thread sanitizer, sanitizers on the device, packages, Docker, fuzzing
  --only STEP   this step, and the builds that it needs; may be given more than once
  --list        the steps
  --help        this text

Logs are kept in build/test-logs. ccache is used if it is installed. Exit status: 0 if every test passed, 1 if not, 2 for wrong usage.
TEXT
}

all=no only=''
while [ $# -gt 0 ]; do
    case $1 in
    --all) all=yes; shift ;;
    --only)
        [ $# -ge 2 ] && grep -q "^$2 " <<<"$steps" || { echo "run.sh: --only takes a step of --list" >&2; exit 2; }
        only+=" $2 "
        shift 2
        ;;
    --list) awk 'NF { name = $1; when = $2; $1 = $2 = ""; printf "%-18s%s%s\n", name, $0, when == "all" ? " (--all)" : "" }' <<<"$steps"; exit 0 ;;
    --help) usage; exit 0 ;;
    *) echo "run.sh: unknown option $1; see --help" >&2; exit 2 ;;
    esac
done

is_wanted() {
    if [ -n "$only" ]; then
        [[ $only == *" $1 "* ]]
    else
        [ $all = yes ] || grep -qE "^$1 +default " <<<"$steps"
    fi
}

logs=build/test-logs
mkdir -p "$logs"
results=$logs/results
: >"$results"
began=$SECONDS

# --- one step --------------------------------------------------------------------------------------------------------------------------

# Filters the output of a running ctest: prints the failed and the skipped tests, and warnings.
progress() { awk '/\*\*\*/ || /warning: *$|^ *skipped: / { print substr($0, 1, 300); fflush() }'; }

# explain NAME: prints each failed test of a step with its output, which has the assertions with their values, and the command that runs it
# alone.
explain() {
    local name=$1 alone='' machine=''
    case $name in
    unit-asan) alone='ctest --test-dir build/asan' ;;
    unit-tsan) alone='ctest --test-dir build/tsan' ;;
    fuzz | boost-1.88) alone="ctest --test-dir build/$name" ;;
    *) alone='ctest --test-dir build/release' ;;
    esac
    case $name in
    nvme*) return ;; # its scripts print what failed
    hosts* | slow* | *-612 | on-hardware | siw) machine="$(machine_of "$name") " ;;
    device* | programs* | hostile) if [ -z "$device" ]; then machine="$(machine_of "$name") "; fi ;;
    esac
    awk -v step="$name" -v alone="$alone" -v machine="$machine" '
        function end() {
            if (is_shown && !has_command) print "alone: " machine alone " --output-on-failure -R \"^" test "$\""
            is_shown = 0
        }
        /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
            end()
            is_shown = /\*\*\*/ && !/\*\*\*Skipped/
            if (is_shown) {
                has_command = 0
                lines = 0
                test = $0
                sub(/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /, "", test)
                sub(/ \.+ *\*\*\*.*/, "", test)
                print "\n== " step
            }
        }
        /^ *Start +[0-9]+:/ || /^[0-9]+% tests passed/ { end() }
        is_shown && sub(/^alone: /, "alone: " machine) { print; has_command = 1; next }
        is_shown && NF && ++lines <= 80 { print substr($0, 1, 300) }
        END { end() }
    ' "$logs/$name.log"
}

# step NAME COMMAND…: runs a command that must succeed; shows its output if it fails.
step() {
    local name=$1 start=$SECONDS status=0
    shift
    "$@" >"$logs/$name.log" 2>&1 || status=$?
    # Other compilers may warn of what these do not, so a user's test run does not fail for it.
    if [ $all = yes ] && [[ $name == build-* ]] && grep -a 'warning: ' "$logs/$name.log"; then
        echo "$name: the compiler warned"
        status=1
    fi
    if [ $status != 0 ]; then
        tail -n 60 "$logs/$name.log"
        echo "$name broken $((SECONDS - start))" >>"$results"
        echo "== $name: FAILED after $((SECONDS - start)) s; see $logs/$name.log"
        return 1
    fi
    echo "$name built $((SECONDS - start))" >>"$results"
    echo "== $name: $((SECONDS - start)) s"
}

# tests NAME COMMAND…: runs a command that ends with ctest's closing line, once or more often, natively or inside the virtual machine.
# Without that line, the run counts as aborted.
tests() {
    local name=$1 start=$SECONDS status=0 bad=0 count=0 left_out=0
    shift
    "$@" 2>&1 | tee "$logs/$name.log" | progress
    status=${PIPESTATUS[0]}
    # From each closing line: the number of failed tests and of all tests.
    read -r bad count < <(
        sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests failed out of ([0-9]+).*/\1 \2/p' "$logs/$name.log" |
            awk '{ bad += $1; count += $2 } END { print bad + 0, count + 0 }'
    )
    if [ "$count" = 0 ] || { [ "$status" != 0 ] && [ "$bad" = 0 ]; }; then
        tail -n 60 "$logs/$name.log"
        echo "$name broken $((SECONDS - start))" >>"$results"
        echo "== $name: did not run to the end; see $logs/$name.log"
        return 1
    fi
    # A skipped test prints its reason; it does not count as passed.
    left_out=$(grep -acE '\*\*\*Skipped' "$logs/$name.log")
    echo "$name tests $((SECONDS - start)) $((count - bad - left_out)) $bad $left_out" >>"$results"
    echo "== $name: $((count - bad - left_out)) passed, $bad failed, $left_out skipped, $((SECONDS - start)) s"
}

# --- what the steps do -----------------------------------------------------------------------------------------------------------------

launcher=() linker=()
# use_tools: how the builds use what the step `install` has installed.
use_tools() {
    if command -v ccache >/dev/null; then
        # Without absolute paths in its keys, a clone in another folder finds what this one compiled. The compiler lists what it reads, so that
        # nothing is preprocessed before.
        export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
        launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    fi
    # lld links a program in a quarter of the time.
    if command -v ld.lld >/dev/null; then linker=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=lld); fi
}

# Low priority beside a virtual machine that has the host's time: without enough of it, its guest misses deadlines. The gate's machines are
# steady, and there a low priority would lose to whatever else runs on the host.
if [ $all = yes ] || [ -n "$only" ]; then gently='nice -n 15'; else gently=''; fi

# build PRESET TARGET…: configures and builds. Ninja alone starts two compilers more than there are processors, which costs a tenth of
# the time. Several files are compiled as one, except those of the optimised tree, which users compile: its library, whose instructions are counted,
# and with --all also its programs and tests.
build() {
    local preset=$1 together=''
    shift
    case $preset in
    asan | tsan) together='lib;apps;test' ;;
    release) if [ $all = no ]; then together='apps;test'; fi ;;
    esac
    cmake --preset "$preset" -DRCVERBS_UNITY_BUILD="$together" "${launcher[@]}" "${linker[@]}" &&
        $gently cmake --build --preset "$preset" --parallel "$(nproc)" --target "$@"
}

# A sanitizer's report ends the test that caused it.
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

run_ctest() {
    local tree=$1
    shift
    $gently ctest --test-dir "build/$tree" --output-on-failure --no-tests=error "$@"
}

# The virtual machine of a step. The gate's is steady: a test takes the same guest time however busy the host is. So are those of another
# kernel, whose tests then differ by the kernel alone, and of the address sanitizer, whose programs are too large for the guest's memory:
# where idle time is skipped, a wait for the host's disk takes any time. The machines of slow* skip idle time, which for a fast processor
# would take most of an hour. With a thread sanitizer a program executes ten times as many instructions: in the host's time, whatever else
# the host does then decides whether a deadline is met; a processor 8 times faster than the gate's makes up for it. The others have two
# processors, which interleave otherwise, and the host's time.
machine_of() {
    local options='--memory 4096 --timeout 5000'
    case ${1%-612} in
    device | device-any | programs | hostile | hosts | device-asan | programs-asan) options+=' --steady' ;;
    device-tsan | hosts-tsan) options+=' --deterministic --slow 1' ;;
    esac
    case $1 in *-612) options+=' --kernel 6.12' ;; esac
    if [[ $1 =~ ^slow([0-9]+)-seed([0-9]+)$ ]]; then options+=" --deterministic --slow ${BASH_REMATCH[1]} --seed ${BASH_REMATCH[2]}"; fi
    case $1 in hosts* | on-hardware | siw-pair) options+=' --topology pair' ;; esac
    case $1 in siw*) options+=' --provider siw' ;; esac
    echo "test/softroce/vm $options --"
}

in_machine() {
    local name=$1
    shift
    RCVERBS_VM_OUT=$PWD/$logs/vm-$name $(machine_of "$name") "$@"
}

# device_tests STEP TREE GROUP…: test cases in separate processes, without ctest; test/support/apart.hpp has the reason.
device_tests() {
    local name=$1
    shift
    if [ -n "$device" ]; then
        # Tests that need the virtual machine's network skip themselves: see test/device/fixture.hpp.
        RCVERBS_TEST_ADDRESS=$address RCVERBS_TEST_ADDRESS6=${address6#-} test/device/apart.sh "$@"
    else
        in_machine "$name" test/device/apart.sh "$@"
    fi
}

# Always in the virtual machine, which has two devices and a wire between them.
hosts_tests() { in_machine "$1" test/device/apart.sh "$2" hosts; }

build_fuzz_and_run() {
    cmake --preset fuzz && cmake --build --preset fuzz && run_ctest fuzz -L fuzz -j 2
}

# Several files as one, which costs a third of the time.
build_with_boost_and_run() {
    local folder
    folder=$(test/package/boost) || return 1
    cmake --preset release -B build/boost-1.88 -DBoost_DIR="$folder/usr/lib/x86_64-linux-gnu/cmake/Boost-1.88.0" \
        -DCMAKE_CXX_FLAGS=-DBOOST_ASIO_NO_DEPRECATED -DRCVERBS_UNITY_BUILD='lib;apps;test' "${launcher[@]}" "${linker[@]}" &&
        $gently cmake --build build/boost-1.88 --parallel "$(nproc)" --target tests_without_device adaptors without_rdma_example readme_example docs_in_headers |
        tee build/boost-1.88.log && ! grep -aq 'warning: ' build/boost-1.88.log &&
        run_ctest boost-1.88 -L '^unit' -LE 'package|programs' -j 2
}

# nvme_tests STEP [OPTION…]: always in the virtual machine, whose kernel is the initiator.
nvme_tests() {
    local status=0
    local -x RCVERBS_VM_OUT=$PWD/$logs/vm-$1
    shift
    test/softroce/vm "$@" --memory 2048 -- test/nvme/initiator.sh build/release/bin || status=1
    test/softroce/vm "$@" --topology pair --memory 2048 -- test/nvme/initiator.sh build/release/bin || status=1
    # Its list of tests is for the distribution's kernel.
    if [ $# = 0 ]; then test/softroce/vm --memory 2048 -- test/nvme/blktests.sh build/release/bin || status=1; fi
    return $status
}

# All but the device tests, which are steps of their own.
on_hardware() {
    local perftest='perftest-write perftest-read perftest-send' verify='verify-write verify-read verify-send verify-write-imm verify-fetch-add verify-compare-swap'
    # shellcheck disable=SC2086 # words
    in_machine "$1" test/softroce/on_hardware.sh release doctor path write read atomic $verify copy $perftest nvme
}

siw_tests() {
    local status=0
    in_machine siw test/softroce/siw_suite.sh release || status=1
    on_hardware siw-pair || status=1
    return $status
}

# A Ceph cluster on this machine for each case, then one in the virtual machine.
ceph_tests() {
    local status=0
    local -x RCVERBS_VM_OUT=$PWD/$logs/vm-$1
    $gently cmake --build build/release --parallel "$(nproc)" --target ceph_tests || return 1
    build/release/bin/ceph_tests --apart --jobs=1 --timeout=600 || status=1
    test/softroce/vm --memory 4096 --timeout 3600 -- test/nvme/initiator.sh build/release/bin ceph || status=1
    return $status
}

# unit_tests TREE: the tests without a device of a tree with sanitizers. Forking a program for each test takes less time than loading it:
# test/support/apart.hpp.
unit_tests() {
    local tree=$1 program status=0
    for program in unit_tests fabric_behaviour_tests device_tests_on_fabric fabric_tests program_tests; do
        case $program in
        fabric_tests) [ "$tree" = asan ] || continue ;;  # not built with the thread sanitizer
        program_tests) [ $all = yes ] || continue ;;
        esac
        $gently "build/$tree/bin/$program" --apart --jobs=2 --timeout=900 || status=1
    done
    run_ctest "$tree" -L '^unit-scripts$' || status=1
    return $status
}

# The programs take seconds to start with a sanitizer, so only the tests that cover most of them run; they use the same threads as the other
# tests.
sanitized_programs='*server and client print the output of the blog post*,*clients killed while they connect*,*a thousand times each*,*a damaged byte is found*,*the doctor reports*'

# In the gate, the tests without a device are compiled only once, with sanitizers, and programs of longer tests are not compiled.
release_targets() {
    if [ $all = yes ] || [[ $only == *' unit-release '* ]]; then
        echo all
    elif [[ $only == *' virtual-machine '* ]]; then
        echo all
    elif [ -n "$only" ]; then
        echo release_tests soak
    else
        echo release_tests
    fi
}

# The programs are compiled with sanitizers only by --all.
without_device() { if [ $all = yes ]; then echo tests_without_device program_tests; else echo tests_without_device; fi; }

run() {
    local name=$1
    is_wanted "$name" || return 0
    case $name in
    build-release) step "$name" build release $(release_targets) ;;
    build-asan) step "$name" build asan $(without_device) ;;
    tidy) tests "$name" run_ctest release -L tidy ;;
    site) tests "$name" run_ctest release -L site ;;
    headers) step "$name" build release all_verify_interface_header_sets ;;
    build-tsan) step "$name" build tsan $(without_device) tests_with_device soak ;;
    build-asan-device) step "$name" build asan tests_with_device soak ;;
    unit-asan) tests "$name" unit_tests asan ;;
    unit-release) tests "$name" run_ctest release -L '^unit' -LE package -j 2 ;;
    unit-tsan) tests "$name" unit_tests tsan ;;
    checks) tests "$name" run_ctest release -L 'docs|style|bench|unit-package|unit-programs' -j 2 ;;
    device) tests "$name" device_tests "$name" release cases behaviour ;;
    programs) tests "$name" device_tests "$name" release programs scripts ;;
    hostile) tests "$name" device_tests "$name" release hostile ;;
    device-any) tests "$name" device_tests "$name" release any ;;
    device-smp) tests "$name" device_tests "$name" release cases any behaviour programs hostile scripts soak ;;
    device-fabric) tests "$name" test/fabric/device_suite.sh release ;;
    slow*) tests "$name" in_machine "$name" test/device/apart.sh release programs hostile ;;
    device-long) tests "$name" device_tests "$name" release long scripts-long ;;
    device-asan) tests "$name" device_tests "$name" asan cases any soak ;;
    programs-asan) tests "$name" device_tests "$name" asan "only=$sanitized_programs" ;;
    device-tsan) tests "$name" device_tests "$name" tsan cases any soak ;;
    hosts | hosts-smp) tests "$name" hosts_tests "$name" release ;;
    hosts-tsan) tests "$name" hosts_tests "$name" tsan ;;
    fuzz) tests "$name" build_fuzz_and_run ;;
    boost-1.88) tests "$name" build_with_boost_and_run ;;
    # The Docker image compiles the packages, if there is a Docker engine, so that they are compiled only once.
    packages) tests "$name" env RCVERBS_PACKAGES="$PWD/build/packages" ctest --test-dir build/release -L distribution --output-on-failure --no-tests=error ;;
    device-612) tests "$name" in_machine "$name" test/device/apart.sh release cases any behaviour ;;
    programs-612) tests "$name" in_machine "$name" test/device/apart.sh release programs scripts ;;
    hostile-612) tests "$name" in_machine "$name" test/device/apart.sh release hostile ;;
    hosts-612) tests "$name" hosts_tests "$name" release ;;
    nvme) tests "$name" nvme_tests "$name" ;;
    ceph) tests "$name" ceph_tests "$name" ;;
    nvme-612) tests "$name" nvme_tests "$name" --kernel 6.12 ;;
    on-hardware) tests "$name" on_hardware "$name" ;;
    siw) tests "$name" siw_tests ;;
    virtual-machine) tests "$name" ctest --test-dir build/release -L vm --output-on-failure --no-tests=error ;;
    esac
}

# Adds the build that a single step needs.
need() {
    local name=$1
    [[ $only == *" $name "* ]] || only+=" $name "
}
for name in $only; do
    case $name in
    unit-asan) need build-asan ;;
    device-asan | programs-asan) need build-asan-device ;;
    unit-tsan | device-tsan | hosts-tsan) need build-tsan ;;
    headers | tidy | site | unit-release | checks | device | device-any | device-fabric | programs | hostile | device-smp | device-long | slow* | hosts | hosts-smp | *-612 | packages | nvme | ceph | on-hardware | siw | virtual-machine) need build-release ;;
    esac
done

# --- all of it -------------------------------------------------------------------------------------------------------------------------

if device=$(test/softroce/usable-device); then
    read -r device address address6 <<<"$device"
    echo "tests: device tests run on this machine's RDMA device $device ($address)"
else
    device='' address='' address6=''
    echo "tests: device tests run in the SoftRoCE virtual machine; this machine has no usable RDMA device"
fi
echo "tests: logs are kept in $PWD/$logs"

# The gate's random tests have the same seeds in each run.
if [ $all = no ]; then export RCVERBS_FABRIC_SEED=${RCVERBS_FABRIC_SEED:-20}; fi
if [ $all = yes ] || [ -n "$only" ]; then groups='build test check extra'; else groups='build test check'; fi
# shellcheck disable=SC2086 # a list of names
step install .ci/install-deps $groups || exit 1
use_tools
run build-release || exit 1

# Two chains of steps run in parallel. A machine uses one processor; whichever chain is free first takes the next step in this list.
on_machine=(device programs hostile hosts device-any device-smp hosts-smp device-long slow0-seed1 slow2-seed2 slow3-seed3 slow5-seed4 virtual-machine nvme device-612 programs-612 hostile-612 hosts-612 nvme-612 on-hardware siw ceph)
rm -rf "$logs/taken"
mkdir "$logs/taken"
take_steps() {
    local name
    for name in "${on_machine[@]}"; do
        if mkdir "$logs/taken/$name" 2>/dev/null; then run "$name"; fi
    done
}
take_steps &
run build-asan && run unit-asan
run checks
run headers
run tidy
run site
run build-tsan && run unit-tsan
run unit-release
run device-fabric
run build-asan-device
# A real device belongs to one step at a time.
if [ -z "$device" ]; then take_steps; fi
wait
{
    run device-tsan
    run hosts-tsan
    run device-asan
    run programs-asan
} &
run fuzz
run boost-1.88
run packages
wait

# --- the end ---------------------------------------------------------------------------------------------------------------------------

echo
echo "step                 seconds   passed   failed  skipped"
awk '{ printf "%-18s %9d %8s %8s %8s\n", $1, $3, $2 == "tests" ? $4 : "-", $2 == "tests" ? $5 : $2 == "broken" ? "broken" : "-", $2 == "tests" ? $6 : "-" }' "$results"
echo
echo "the slowest tests:"
cat "$logs"/*.log | grep -ahoE '[0-9]+/[0-9]+ Test +#[0-9]+: .* +[0-9.]+ sec' |
    sed -E 's/^[0-9]+\/[0-9]+ Test +#[0-9]+: (.*[^.]) ?\.+ *\**(Passed|Failed|Timeout|Skipped|Exception[^ ]*) +([0-9.]+) sec/\3 s  \1/' | sort -rn | head -n 10
echo
awk -v seconds="$((SECONDS - began))" '
    $2 == "tests" { has_tests = 1; passed += $4; failed += $5; skipped += $6 }
    $2 == "broken" { print "did not run to the end: " $1; ++failed }
    END {
        all = passed + failed + skipped
        print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped"
        # The sum of the closing lines of ctest, in the same format for programs that parse it.
        printf "\n%d%% tests passed, %d tests failed out of %d\n\nTotal Test time (real) = %d.00 sec\n", (all > 0 ? (all - failed) * 100 / all : 0), failed, all, seconds
        exit (failed > 0 || (has_tests && all == 0))
    }' "$results"
verdict=$?
for name in $(awk '$2 == "tests" && $5 > 0 { print $1 }' "$results"); do explain "$name"; done
exit $verdict
