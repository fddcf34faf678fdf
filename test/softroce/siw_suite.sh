#!/usr/bin/env bash
# siw_suite.sh TREE: the device tests of build/TREE on Soft iWARP, in a machine that `vm --provider siw` has started. Each test is a process of its own.
# test/softroce/siw-differences lists what differs from SoftRoCE. The programs run between two devices: on_hardware.sh.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
bin=$PWD/build/$1/bin status=0
# Soft iWARP counts locked memory of root, too.
ulimit -l unlimited
(cd "$bin" && ../../../test/softroce/into-memory bash ip rdma ./{device_tests,rdma-,example-}*)
without=$(sed -nE 's/^("[^"]*") .*/~\1/p' test/softroce/siw-differences | tr '\n' ' ')
"$bin/device_tests" --apart --timeout=120 "~[.] ~[long] ~[demo] ~[examples] ~[bench] $without" || status=1
exit $status
