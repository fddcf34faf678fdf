#!/usr/bin/env bash
# start.sh: runs the commands of docs/start.md verbatim, as far as they are for the virtual machine: each command must succeed, and the
# commands of the two terminals run in the machine, one in the background.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mapfile -t lines < <(awk '/^```sh$/ { inside = 1; next } /^```$/ { inside = 0 } inside' docs/start.md)
run=0
for line in "${lines[@]}"; do
    case $line in
    # The user's own project: package.deb builds and runs it.
    *' -- sh -c '"'/tmp/first/"*) ;;
    'test/softroce/vm -- '*)
        echo "\$ $line"
        bash -c "$line"
        run=$((run + 1))
        ;;
    build/release/bin/rdma-server*) server=$line ;;
    build/release/bin/rdma-client*) client=$line ;;
    esac
done
[ $run -ge 3 ] || { echo "docs/start.md has only $run commands for the virtual machine"; exit 1; }
echo "\$ $server"
echo "\$ $client"
# The client fails until the server listens.
test/softroce/vm -- bash -c "$server --count 1 & for i in {1..200}; do sleep 0.3; if $client; then wait \$!; exit; fi; done; exit 1"
