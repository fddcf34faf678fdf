#!/usr/bin/env bash
# man.sh PROGRAMS: the manual pages name exactly the options of the programs, and format without a warning.
set -euo pipefail
programs=$1
pages=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../apps/man" && pwd)
wrong=0
complain() {
    echo "$*"
    wrong=1
}

# A program, and the subcommands that have their own help.
check() {
    local program=$1 page=$pages/$1.1 way in_help in_page
    shift
    in_help=$(for way in "$@"; do
        # shellcheck disable=SC2086 # a subcommand, or none
        "$programs/$program" $way --help
    done | sed -nE 's/^ +(-.,)?(--[a-z-]+).*/\2/p' | sort -u)
    [ -n "$in_help" ] || complain "$program --help names no options"
    in_page=$(sed -nE 's/\\-/-/g; s/^\\fB(-.\\fR, \\fB)?(--[a-z-]+)\\fR.*/\2/p' "$page" | sort -u)
    if [ "$in_help" != "$in_page" ]; then
        complain "options of $program: < in its help only, > in its manual page only"
        diff <(echo "$in_help") <(echo "$in_page") || true
    fi
}
check rdma-bench '' server client loopback compare
check rdma-client ''
check rdma-copy '' serve
check rdma-doctor ''
check rdma-nvme '' serve
check rdma-server ''
for page in "$pages"/*; do
    said=$(groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null)
    [ -z "$said" ] || complain "$said"
done
exit $wrong
