# Completion for rdma-server, rdma-client, rdma-bench, rdma-copy, rdma-doctor, rdma-nvme and rcverbs-fabric in bash: the words are those of the programs' own help.

_rcverbs_complete() {
    local program=$1 word=$2 before=$3 subcommand='' help values
    case ${COMP_WORDS[1]-} in
    server | client | loopback | compare) [ "${program##*/}" != rdma-bench ] || [ "$COMP_CWORD" = 1 ] || subcommand=${COMP_WORDS[1]} ;;
    run | list | link | loss | kill) [ "${program##*/}" != rcverbs-fabric ] || [ "$COMP_CWORD" = 1 ] || subcommand=${COMP_WORDS[1]} ;;
    serve) [[ ${program##*/} != @(rdma-nvme|rdma-copy) ]] || [ "$COMP_CWORD" = 1 ] || subcommand=serve ;;
    esac
    # shellcheck disable=SC2086 # empty for none
    help=$("$program" $subcommand --help 2>/dev/null) || return
    # What a word may be where the help names a few: "--poll busy|adaptive|event", "mode write|read|atomic".
    case $before in
    --key-file) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --json | --histogram | --report | --config | compare) [ -z "$subcommand" ] || { COMPREPLY=($(compgen -f -- "$word")); return; } ;;
    esac
    if [[ $before == -* ]]; then
        values=$(sed -nE "s/^ +(-.,)?$before ([^ ]*\|[^ ]*).*/\2/p" <<<"$help")
        if [ -n "$values" ]; then
            COMPREPLY=($(compgen -W "${values//|/ }" -- "$word"))
            return
        fi
    fi
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$(sed -nE 's/^ +(-.,)?(--[a-z-]+).*/\2/p' <<<"$help")" -- "$word"))
        return
    fi
    # Its arguments are files, too.
    if [ "${program##*/}" = rdma-copy ]; then
        COMPREPLY=($(compgen -f -- "$word"))
        return
    fi
    values=$(sed -nE 's/^  (mode|test) ([^ ]*\|[^ ]*).*/\2/p' <<<"$help")
    if [ -z "$subcommand" ] && grep -q '^Subcommands:' <<<"$help"; then
        values=$(sed -n '/^Subcommands:/,$ s/^  \([a-z]*\) .*/\1/p' <<<"$help")
    fi
    COMPREPLY=($(compgen -W "${values//|/ }" -- "$word"))
}
complete -F _rcverbs_complete rcverbs-fabric rdma-server rdma-client rdma-bench rdma-copy rdma-doctor rdma-nvme
