#!/usr/bin/env bash
# device_suite.sh TREE: the device tests and the plain C behaviour tests of build/TREE on a device of the fabric, each test in a process of its
# own, one at a time because they share ports, and the programs that they start likewise. test/fabric/differences lists what differs from SoftRoCE.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
bin=$PWD/build/$1/bin status=0
without=$(sed -nE 's/^("[^"]*") .*/~\1/p' test/fabric/differences | tr '\n' ' ')
on_fabric() {
    # shellcheck disable=SC2016 # of the node
    "$bin/rcverbs-fabric" run -q sh -c 'export RCVERBS_TEST_ADDRESS=$RCVERBS_FABRIC_ADDRESS RCVERBS_TEST_ADDRESS6=$RCVERBS_FABRIC_ADDRESS6; exec "$@"' sh "$@"
}
on_fabric "$bin/device_tests" --apart --timeout=300 "~[.] ~[long] $without" || status=1
on_fabric "$bin/device_behaviour_tests" --apart || status=1
exit $status
