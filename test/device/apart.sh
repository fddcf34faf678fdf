#!/usr/bin/env bash
# apart.sh TREE GROUP…: runs the tests of build/TREE that need a device, each in its own process, forked from one loaded program
# (test/support/apart.hpp). GROUP: one of test/device/groups; `behaviour`: the plain C calls; `hosts`: those on two devices; `scripts`: tests
# that are no test cases, or long ones of them; `soak`: clients that come and go for three seconds; `only=NAMES`: test cases by name, as a
# Catch2 specification.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
tree=$1 status=0
shift
(
    cd "build/$tree/bin" && ../../../test/softroce/into-memory bash ip rdma tc nft ./{device,hosts,rdma-,example-}* ./{stream_peer,soak,docs_callback_server,docs_request_server}
)
for group in "$@"; do
    case $group in
    hosts) "build/$tree/bin/hosts_tests" --apart ;;
    behaviour) "build/$tree/bin/device_behaviour_tests" --apart ;;
    scripts | scripts-long | soak) ctest --test-dir "build/$tree" -L "^device-$group\$" --output-on-failure --no-tests=error ;;
    only=*) "build/$tree/bin/device_tests" --apart "${group#only=}" ;;
    long) "build/$tree/bin/device_tests" --apart --timeout=900 "$(sed -n 's/^long //p' test/device/groups)" ;;
    *) spec=$(sed -n "s/^$group //p" test/device/groups) && [ -n "$spec" ] && "build/$tree/bin/device_tests" --apart "$spec" ;;
    esac || status=1
done
exit $status
