#!/usr/bin/env python3
"""tables.py [--write] ERRORS: docs/reference/options.md and statistics.md as they follow from the public headers' comments, and errors.md from
the texts in the library, which the program ERRORS prints (test/docs/errors.cpp).

Without --write compares, shows the difference, and exits with 1 if there is one.
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
    """Section, type, name, default and comment of each field, in order."""
    text = (headers / header).read_text()
    body = re.search(rf"struct (?:RCVERBS_EXPORT )?{struct} \{{\n(.*?)\n\}};", text, re.S).group(1)
    section, comment = "", []
    for line in body.splitlines():
        if match := re.match(r"\s*// --- (.*?) -+", line):
            section, comment = match.group(1), []
        elif match := re.match(r"\s*/// ?(.*)", line):
            comment.append(match.group(1))
        else:
            match = re.match(r"\s*([\w:<>().,&\s]*?[\w>)]) (\w+)(?: = (.*?)|\{(.*?)\})?;$", line)
            if match and comment:
                yield section, match.group(1).strip(), match.group(2), match.group(3) or match.group(4) or "", " ".join(comment)
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


def table(header, struct, has_defaults=True):
    lines, last = [], None
    for section, kind, name, value, comment in fields(header, struct):
        if section != last:
            if section:
                lines += ["", f"### {section[0].upper()}{section[1:]}"]
            lines += ["", "| field | default | meaning |" if has_defaults else "| field | meaning |"]
            lines += ["| --- | --- | --- |" if has_defaults else "| --- | --- |"]
            last = section
        comment = comment.replace("|", "\\|")
        lines.append(f"| `{name}` | {default(kind, value)} | {comment} |" if has_defaults else f"| `{name}` | {comment} |")
    return "\n".join(lines) + "\n"


def options():
    page = """# Options

For programmers who look up a limit or a deadline. Afterwards you know its default, its range and its effect. The tables are made from the headers, which have
the types. A value out of range is rejected with `errc::invalid_option`; a value beyond the device's limits is reduced to them, and `connection::limits()` has
the result. A duration longer than a year is a year.
"""
    for header, struct in [
        ("options.hpp", "connection_options"),
        ("options.hpp", "queue_pair_options"),
        ("options.hpp", "timeout_options"),
        ("options.hpp", "liveness_options"),
        ("options.hpp", "placement_options"),
        ("poller.hpp", "polling_options"),
        ("poller.hpp", "poller_options"),
        ("acceptor.hpp", "acceptor_options"),
        ("session.hpp", "session_options"),
        ("message_channel.hpp", "message_channel_options"),
        ("request_channel.hpp", "request_channel_options"),
        ("request_client.hpp", "request_client_options"),
        ("request_server.hpp", "request_server_options"),
        ("experimental/region_channel.hpp", "region_channel_options"),
        ("experimental/region_channel.hpp", "region_offers_options"),
        ("experimental/remote_allocator.hpp", "remote_pool_options"),
        ("experimental/remote_allocator.hpp", "allocate_options"),
        ("experimental/ring.hpp", "ring_options"),
        ("connector.hpp", "connector_options"),
        ("backoff_options.hpp", "backoff_options"),
        ("shared_receive_queue.hpp", "shared_receive_options"),
        ("slot_pool.hpp", "slot_pool_options"),
        ("experimental/window_pool.hpp", "window_pool_options"),
        ("memory_pool.hpp", "memory_pool_options"),
        ("experimental/registration_cache.hpp", "registration_cache_options"),
    ]:
        page += f"\n## {struct}\n{table(header, struct)}"
    return page


def statistics():
    return f"""# Statistics

For programmers and operators who watch connections. Afterwards you know the meaning of each counter. Any thread may take a snapshot, at little cost.
Totals start at 0 with their object and never decrease; what describes this moment (outstanding, waiting, held, free, used, registered …) does. The tables are made from the headers.

## connection::statistics()
{table("statistics.hpp", "connection_statistics", False)}
`sends_posted / doorbells` is the mean number of work requests per doorbell, `completions_per_poll()` shows how busy the poller is, `slot_waits` and
`read_depth_waits` show whether a queue is too short, `sends_signalled / sends_posted` is the share of signaled requests.

## acceptor::statistics()
{table("acceptor.hpp", "acceptor_statistics", False)}
## message_channel::statistics()
{table("message_channel.hpp", "message_channel_statistics", False)}
## request_channel::statistics()
{table("request_channel.hpp", "request_channel_statistics", False)}
## request_client::statistics()
{table("request_client.hpp", "request_client_statistics", False)}
## request_server::statistics()
{table("request_server.hpp", "request_server_statistics", False)}
## region_channel::statistics()
{table("experimental/region_channel.hpp", "region_channel_statistics", False)}
## remote_pool::statistics()
{table("experimental/remote_allocator.hpp", "remote_pool_statistics", False)}
## ring_writer::statistics() and ring_reader::statistics()
{table("experimental/ring.hpp", "ring_statistics", False)}
## memory_pool::statistics()
{table("memory_pool.hpp", "memory_pool_statistics", False)}
## registration_cache::statistics()
{table("experimental/registration_cache.hpp", "registration_cache_statistics", False)}
`memory_pool_statistics::fragmentation()` is the share of free memory outside of the largest free block.

## Other counters

`connection::leaked_count()`: queue pairs that could not be destroyed; 0 on devices that work.

Counters of the device: `/sys/class/infiniband/*/ports/1/hw_counters` (on SoftRoCE `sent_pkts`, `rcvd_rnr_err`, `completer_retry_err`, `retry_exceeded_err`), and
`rdma resource` shows how many objects there are.
"""


def enumerators():
    """The names of the enumerators, by enumeration and value."""
    names = {}
    for header in ["error.hpp", "session_error.hpp", "channel_error.hpp"]:
        for kind, body in re.findall(r"enum class (\w+) \{\n(.*?)\n\};", (headers / header).read_text(), re.S):
            names |= {(kind, int(value)): name for name, value in re.findall(r"^\s*(\w+) = (\d+),", body, re.M)}
    return names


def sentence(text):
    return text[0].upper() + text[1:] + "."


def errors(program):
    named = {"errc": False, "wc_errc": True, "cm_errc": True, "session_errc": False, "channel_errc": False}  # in C headers
    rows = {kind: [] for kind in named}
    names = enumerators()
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        kind, value, what, remedy, conditions, symbol = line.split("\t")
        name = names.get((kind, int(value)))
        symbol = re.sub(r"RDMA_CM_EVENT_REJECTED, reason: ", "rejected: ", symbol)
        cells = [f"`{name}`" if name else "—", value, *([symbol] if named[kind] else []), sentence(what), sentence(remedy), conditions]
        rows[kind].append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    page = (root / "docs/reference/errors.md").read_text()
    for kind in rows:
        marks = f"<!-- {kind}: test/docs/tables.py writes this table -->\n\n", f"\n<!-- end of {kind} -->"
        begin, end = page.index(marks[0]) + len(marks[0]), page.index(marks[1])
        head = ["code", "value", *(["in the C headers"] if named[kind] else []), "what happened", "what to do", "conditions"]
        page = page[:begin] + f"| {' | '.join(head)} |\n" + "| --- " * len(head) + "|\n" + "\n".join(rows[kind]) + "\n" + page[end:]
    return page


def main():
    program = [a for a in sys.argv[1:] if not a.startswith("--")][0]
    differs = False
    for name, page in [("options.md", options()), ("statistics.md", statistics()), ("errors.md", errors(program))]:
        file = root / "docs/reference" / name
        if "--write" in sys.argv:
            file.write_text(page)
            continue
        difference = list(difflib.unified_diff(file.read_text().splitlines(), page.splitlines(), name, "the sources", lineterm=""))
        print("\n".join(difference))
        differs = differs or bool(difference)
    return 1 if differs else 0


sys.exit(main())
