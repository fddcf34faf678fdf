#!/usr/bin/env bash
# examples.sh: the programs that the documents show are the ones that are compiled.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# A document's C++ block is the file.
shows() { diff <(sed -n '/^```cpp$/,/^```$/p' "$1" | sed '1d;$d') "$2"; }
shows README.md docs/examples/first.cpp && shows docs/guides/testing-without-rdma.md docs/examples/without_rdma.cpp && echo same
