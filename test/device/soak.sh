#!/usr/bin/env bash
# soak.sh PROGRAM [options]: runs the soak test at the address of the device under test.
exec "$1" "${RCVERBS_TEST_ADDRESS:-10.0.0.1}" "${@:2}"
