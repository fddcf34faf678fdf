#!/usr/bin/env bash
# hosted_ci.sh: runs the steps of docs/examples/hosted-ci.yml as they are, in an empty folder, with a clone of this source tree and a program of
# others for YOUR_COPY_OF_RCVERBS and ./your-tests.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ "$(id -u)" != 0 ]; then
    echo "skipped: the steps install packages, which needs root"
    exit 0
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
printf '#!/bin/sh\nibv_devices | grep -q fab0 && rping -s -C 1 & sleep 1; rping -c -C 1 -a "$RCVERBS_FABRIC_ADDRESS" && wait\n' >your-tests
chmod +x your-tests
count=0
while IFS= read -r command; do
    echo "+ $command"
    command=${command//YOUR_COPY_OF_RCVERBS/file://$source}
    bash -e -c "$command" || { echo "hosted_ci.sh: this step failed" >&2; exit 1; }
    count=$((count + 1))
done < <(sed -n 's/^ *- run: //p' "$source/docs/examples/hosted-ci.yml")
[ "$count" = 6 ] || { echo "hosted_ci.sh: $count steps instead of 6" >&2; exit 1; }
