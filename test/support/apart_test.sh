#!/usr/bin/env bash
# apart_test.sh PROGRAM: checks that --apart reports test cases as ctest would, however they end.
set -uo pipefail
program=$1
fail() {
    echo "$said"
    echo "apart_test.sh: $*" >&2
    exit 1
}
says() { grep -qE -- "$1" <<<"$said" || fail "nothing said like: $1"; }

said=$("$program" --apart --timeout=2 --jobs=2) && fail "exit status 0, although tests failed"
says 'Test +#[0-9]: it passes, with a comma and \[brackets\] in its name \.+   Passed '
says 'it says why it was left out \.+\*\*\*Skipped '
says '^skipped: no such device'
says 'it fails \.+\*\*\*Failed '
says '^one is not two'
says '^  3 == 0$' # an optional's value
says "^alone: $program 'it fails'\$"
says '^--- sh -c .*exit status: 3'
says '^two is two'
says 'it crashes \.+\*\*\*(Failed|Exception: signal 6)'
says 'it hangs \.+\*\*\*Timeout '
says '^40% tests passed, 3 tests failed out of 5$'

said=$("$program" --apart '[good]') || fail "exit status $?, although no test failed"
says '^100% tests passed, 0 tests failed out of 2$'
said=$("$program" --apart '[nothing]') && fail "exit status 0, although there were no tests"
said=$("$program" --apart --jobs=0 2>&1) && fail "exit status 0 for wrong usage"
says 'not a number above 0: --jobs=0'
