#!/usr/bin/env python3
"""generate.py FOLDER FILE…: writes copies of headers of the library into FOLDER for Relacy, which checks them under the memory model of C++.

A FILE is PATH:NAME, a header and the name that it is included by. In the copy, atomics and the plain fields that several threads use are
Relacy's, and each memory order that is stronger than relaxed has a number, by which the test weakens it. FOLDER/orders.inc lists them.
"""
import pathlib
import re
import sys

folder = pathlib.Path(sys.argv[1])
orders = []


def numbered(match, name, line):
    order = match.group(1)
    if order == "relaxed":
        return "rl::mo_relaxed, $"
    orders.append((name, line, order))
    return f"model::order({len(orders) - 1}, rl::mo_{order}), $"


for argument in sys.argv[2:]:
    path, name = argument.split(":")
    out = []
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        line = line.replace("std::atomic<", "model::atomic<")
        line = re.sub(r"^(\s*)(\w+\*) next_ = nullptr;", r"\1model::plain<\2> next_{nullptr};", line)
        out.append(re.sub(r"std::memory_order_(\w+)", lambda m: numbered(m, name, number), line))
    to = folder / name
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("\n".join(out) + "\n")
(folder / "orders.inc").write_text("".join(f'{{"{n}", {line}, rl::mo_{o}}},\n' for n, line, o in orders))
