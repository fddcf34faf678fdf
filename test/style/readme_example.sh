#!/usr/bin/env bash
# readme_example.sh: the README's program is the one that is compiled.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
diff <(sed -n '/^```cpp$/,/^```$/p' README.md | sed '1d;$d') docs/examples/first.cpp && echo same
