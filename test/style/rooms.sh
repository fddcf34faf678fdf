#!/usr/bin/env bash
# rooms.sh: no room of the library includes one that stands above it, nor machines and wire any C header of RDMA's.
cd "$(dirname "${BASH_SOURCE[0]}")/../../lib/src"
declare -A may=(
    [error]='' [wire]='' [machines]='wire' [verbs]='error' [progress]='verbs' [cm]='verbs progress'
    [connection]='error verbs wire machines progress cm' [session]='connection machines wire'
)
status=0
for room in *; do
    while IFS=: read -r file included; do
        other=${included%%/*}
        [ "$other" = "$room" ] && continue
        case " ${may[$room]} " in *" $other "*) ;; *) echo "$file includes $included"; status=1 ;; esac
    done < <(grep -rHoP '^#include "\K[^"]+' "$room")
done
if grep -rnE '#include <(infiniband|rdma)/' machines wire error session ../include; then status=1; fi
# The fabric is a library of its own: it knows nothing of rcverbs.
if grep -rnE '#include <rcverbs/' ../fabric/src ../fabric/include | grep -v '<rcverbs/fabric.hpp>'; then status=1; fi
[ $status = 0 ] && echo "no room looks up"
exit $status
