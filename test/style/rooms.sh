#!/usr/bin/env bash
# rooms.sh: checks the includes of the rooms of lib/src: no room includes a higher one; protocols are made of public headers, machines and
# wire; machines and wire include no RDMA C header.
cd "$(dirname "${BASH_SOURCE[0]}")/../../lib/src"
declare -A may=(
    [probes]='' [error]='' [authentication]='wire' [wire]='' [machines]='' [hosting]='' [verbs]='error' [progress]='error verbs hosting machines' [cm]='verbs hosting progress'
    [memory]='error verbs hosting' [connection]='authentication wire error verbs hosting machines progress cm memory probes'
    [calls]='' [session]='machines wire' [messages]='machines wire probes' [remote]='machines wire'
)
status=0
for room in *; do
    while IFS=: read -r file included; do
        other=${included%%/*}
        [ "$other" = "$room" ] && continue
        case " ${may[$room]} " in *" $other "*) ;; *) echo "$file includes $included"; status=1 ;; esac
    done < <(grep -rHoP '^#include "\K[^"]+' "$room")
done
# What is in detail/ no program may use, so a protocol that needs it could not be written outside.
if grep -rnE '#include <rcverbs/detail/' session messages remote; then status=1; fi
# One public header is for C libraries that are linked statically.
if grep -rnE '#include <(infiniband|rdma)/' machines wire error session messages remote ../include | grep -v '^../include/rcverbs/static_providers.hpp:'; then status=1; fi
# The fabric is a separate library: it must not include rcverbs.
if grep -rnE '#include <rcverbs/' ../fabric/src ../fabric/include ../fabric/process | grep -v '<rcverbs/fabric.hpp>'; then status=1; fi
[ $status = 0 ] && echo "no room looks up"
exit $status
