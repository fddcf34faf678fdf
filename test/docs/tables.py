#!/usr/bin/env python3
"""tables.py [--write] ERRORS: docs/reference/options.md as it follows from the public headers' comments, and errors.md from the texts in the
library, which the program ERRORS prints (test/docs/errors.cpp).

Without --write compares, shows the difference, and exits with 1 if there is one. Checks that no option gives 0 a meaning of its own.
"""
import difflib
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
headers = root / "lib/include/rcverbs"
units = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def fields(header, struct):
    """Type, name, default and comment of each field, in order."""
    text = (headers / header).read_text()
    body = re.search(rf"struct (?:RCVERBS_EXPORT )?{struct} \{{\n(.*?)\n\}};", text, re.S).group(1)
    comment = []
    for line in body.splitlines():
        if match := re.match(r"\s*/// ?(.*)", line):
            comment.append(match.group(1))
        else:
            match = re.match(r"\s*([\w:<>().,&\s]*?[\w>)]) (\w+)(?: = (.*?)|\{(.*?)\})?;$", line)
            if match and comment:
                yield match.group(1).strip(), match.group(2), match.group(3) or match.group(4) or "", " ".join(comment)
            comment = []


def default(kind, value):
    value = value.replace("'", "").removesuffix("{}")
    if value.startswith("{."):
        return f"`{value.replace('std::chrono::', '')}`"
    if match := re.match(r"std::chrono::(\w+)\{(.*)\}$", value):
        return f"{match.group(2)} {units[match.group(1)]}"
    if not value:
        return "—"
    if "milliseconds" in kind:
        return "0" if value == "0" else f"{value} ms"
    if match := re.match(r"(?:std::\w+\{)?(\d+)U?\}? << (10|20|30)$", value):
        return f"{match.group(1)} {dict(zip(('10', '20', '30'), ('KiB', 'MiB', 'GiB')))[match.group(2)]}"
    if "::" in value:
        return f"`{value.split('::')[1]}`"
    return value or "—"


def brief(comment):
    """The first sentence, which says what it is, and those that have its range."""
    first, *others = re.split(r"(?<=\.) (?=[A-Z0-9])", comment)
    ranges = [s for s in others if re.match(r"Above|At least|At most|Not below|Empty|Rounded|A power|Halved|\d", s)]
    return " ".join([first, *ranges]).replace("|", "\\|")


def table(header, struct):
    """Of the fields that are values: neither other options nor functions."""
    lines = ["", "| field | default | meaning |", "| --- | --- | --- |"]
    for kind, name, value, comment in fields(header, struct):
        if not re.search(r"_options\b|^std::function", kind):
            lines.append(f"| `{name}` | {default(kind, value)} | {brief(comment)} |")
    return "\n".join(lines) + "\n"


def options():
    page = """# Options

For programmers who look up a limit or a deadline. Afterwards you know its default and its range. The tables are made from the headers' comments, which say
more; those of experimental classes are in their headers only. A value out of range is rejected with `errc::invalid_option`; a value beyond the device's limits
is reduced to them, and `connection::limits()` has the result. A duration longer than a year is a year. `rnr_retry_count` and `min_rnr_timer` are for the
peer's sends; the connecting side's `retry_count`, and but for iWARP its `traffic_class`, hold for both sides.
"""
    for header, struct in [
        ("options.hpp", "queue_pair_options"),
        ("options.hpp", "timeout_options"),
        ("options.hpp", "liveness_options"),
        ("options.hpp", "placement_options"),
        ("poller.hpp", "polling_options"),
        ("poller.hpp", "poller_options"),
        ("acceptor.hpp", "acceptor_options"),
        ("authentication.hpp", "authentication_options"),
        ("session.hpp", "session_options"),
        ("message_channel.hpp", "message_channel_options"),
        ("request_channel.hpp", "request_channel_options"),
        ("backoff_options.hpp", "backoff_options"),
        ("shared_receive_queue.hpp", "shared_receive_options"),
        ("slot_pool.hpp", "slot_pool_options"),
        ("memory_pool.hpp", "memory_pool_options"),
    ]:
        page += f"\n## {struct}\n{table(header, struct)}"
    return page


def enumerators():
    """The names of the enumerators, by enumeration and value."""
    names = {}
    for header in ["error.hpp", "session_error.hpp", "channel_error.hpp"]:
        for kind, body in re.findall(r"enum class (\w+) \{\n(.*?)\n\};", (headers / header).read_text(), re.S):
            names |= {(kind, int(value)): name for name, value in re.findall(r"^\s*(\w+) = (\d+),", body, re.M)}
    return names


def sentence(text):
    return text[0].upper() + text[1:] + "."


def table_row(cells):
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"


def errors(program):
    named = {"errc": False, "wc_errc": True, "cm_errc": True, "session_errc": False, "channel_errc": False}  # in C headers
    rows = {kind: [] for kind in named}
    names = enumerators()
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        kind, value, what, remedy, conditions, symbol = line.split("\t")
        name = names.get((kind, int(value)))
        symbol = re.sub(r"RDMA_CM_EVENT_REJECTED, reason: ", "rejected: ", symbol)
        cells = [f"`{name}`" if name else "—", value, *([symbol] if named[kind] else []), sentence(what), sentence(remedy), conditions]
        if kind != "channel_errc" or cells not in rows["session_errc"]:  # the page says that they are the same
            rows[kind].append(cells)
    unused = [cells for cells in rows["wc_errc"] if "reliable connections do not use this" in cells[4]]
    rows["wc_errc"] = [cells for cells in rows["wc_errc"] if cells not in unused]
    together = [", ".join(column) for column in zip(*unused)]
    rows["wc_errc"].append([*together[:3], "A status that reliable connections do not have.", "Report it.", ""])
    page = (root / "docs/reference/errors.md").read_text()
    for kind in rows:
        marks = f"<!-- {kind}: test/docs/tables.py writes this table -->\n\n", f"\n<!-- end of {kind} -->"
        begin, end = page.index(marks[0]) + len(marks[0]), page.index(marks[1])
        head = ["code", "value", *(["in the C headers"] if named[kind] else []), "what happened", "what to do", "conditions"]
        page = page[:begin] + f"| {' | '.join(head)} |\n" + "| --- " * len(head) + "|\n" + "".join(table_row(cells) for cells in rows[kind]) + page[end:]
    return page


def zeros():
    """Options of whose comment 0 has a meaning of its own. That is an empty optional's: 0 is a value, or is refused."""
    wrong = []
    for header in [*headers.rglob("*.hpp"), *root.glob("lib/nvme/include/**/*.hpp")]:
        for struct in re.findall(r"^struct (?:RCVERBS_EXPORT )?(\w+_options) \{\n", header.read_text(), re.M):
            for kind, name, _, comment in fields(header, struct):
                if "optional" not in kind and re.search(r"\b0(?: (?:is|means|for|keeps)\b|:)", comment):
                    wrong.append(f"{header.name}: {struct}::{name}: 0 has a meaning of its own; make it an optional")
    return wrong


def main():
    program = [a for a in sys.argv[1:] if not a.startswith("--")][0]
    wrong = zeros()
    print("\n".join(wrong))
    differs = bool(wrong)
    for name, page in [("options.md", options()), ("errors.md", errors(program))]:
        file = root / "docs/reference" / name
        if "--write" in sys.argv:
            file.write_text(page)
            continue
        difference = list(difflib.unified_diff(file.read_text().splitlines(), page.splitlines(), name, "the sources", lineterm=""))
        print("\n".join(difference))
        differs = differs or bool(difference)
    return 1 if differs else 0


sys.exit(main())
