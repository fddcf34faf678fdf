#!/usr/bin/env bash
# apart.sh TREE GROUP…: runs the tests of build/TREE that need a device, each in its own process, forked from one loaded program
# (test/support/apart.hpp). GROUP: one of test/device/groups; `behaviour`: the plain C calls; `scripts`: tests that are no test cases, or
# long ones of them; `only=NAMES`: test cases by name, as a Catch2 specification.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
tree=$1 status=0
shift
for group in "$@"; do
    case $group in
    behaviour) "build/$tree/bin/device_behaviour_tests" --apart ;;
    scripts | scripts-long) ctest --test-dir "build/$tree" -L "^device-$group\$" --output-on-failure --no-tests=error ;;
    only=*) "build/$tree/bin/device_tests" --apart "${group#only=}" ;;
    *) spec=$(sed -n "s/^$group //p" test/device/groups) && [ -n "$spec" ] && "build/$tree/bin/device_tests" --apart "$spec" ;;
    esac || status=1
done
exit $status
