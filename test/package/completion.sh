#!/usr/bin/env bash
# completion.sh PROGRAMS: tests bash's completion of the programs' command lines.
set -euo pipefail
PATH=$1:$PATH
# shellcheck source=/dev/null
source "$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/apps/completion.bash"
wrong=0

# expect "WORDS SO FAR" "OFFERED": the last word is the one being typed; it may be empty.
expect() {
    # shellcheck disable=SC2206 # split at the blanks
    COMP_WORDS=($1)
    [ "${1: -1}" != ' ' ] || COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _rcverbs_complete "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    if [ "${COMPREPLY[*]-}" != "$2" ]; then
        echo "\"$1\": offered \"${COMPREPLY[*]-}\", not \"$2\""
        wrong=1
    fi
}
expect 'rdma-server ' 'write read atomic'
expect 'rdma-client w' 'write'
expect 'rdma-client --po' '--poll'
expect 'rdma-client write --poll ' 'busy adaptive event'
expect 'rdma-client write --poll a' 'adaptive'
expect 'rdma-bench ' 'server client loopback compare'
expect 'rdma-bench l' 'loopback'
expect 'rdma-bench loopback w' 'write write-imm'
expect 'rdma-bench loopback --lat' '--latency'
expect 'rdma-bench server --c' '--count --cpus'
expect 'rdma-doctor --' '--help --json --quiet --address --timeout --serve --peer --port --version'
expect 'rdma-copy --q' '--quiet'
expect 'rdma-copy serve --b' '--bind'
expect "rdma-copy ${BASH_SOURCE[0]}" "${BASH_SOURCE[0]}"
expect 'rdma-nvme ' 'serve'
expect 'rdma-nvme serve --b' '--block-size --bind'
expect 'rdma-nvme serve --block-size 1' '1024'
expect 'rcverbs-fabric ' 'run list link loss kill'
expect 'rcverbs-fabric run --n' '--node'
exit $wrong
