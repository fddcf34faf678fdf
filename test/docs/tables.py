#!/usr/bin/env python3
"""tables.py [--write]: docs/reference/options.md and statistics.md, as they follow from the public headers' comments.

Without --write compares, shows the difference, and exits with 1 if there is one.
"""
import difflib
import pathlib
import re
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
            match = re.match(r"\s*([\w:<>().,\s]*?[\w>)]) (\w+)(?: = (.*?)|\{(.*?)\})?;$", line)
            if match and comment:
                yield section, match.group(1).strip(), match.group(2), match.group(3) or match.group(4) or "", " ".join(comment)
            comment = []


def default(kind, value):
    value = value.replace("'", "")
    if match := re.match(r"std::chrono::(\w+)\{(.*)\}$", value):
        return f"{match.group(2)} {units[match.group(1)]}"
    if "milliseconds" in kind:
        return "0" if value == "0" else f"{value} ms"
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

Every limit and deadline of the library, with its default. Taken from the headers, where the types are; a test compares them. A value out of range is
refused with `errc::invalid_option`, one beyond the device's limits is clamped, and `connection::limits()` says what took effect.
"""
    for header, struct in [
        ("options.hpp", "connection_options"),
        ("poller.hpp", "polling_options"),
        ("acceptor.hpp", "acceptor_options"),
        ("session.hpp", "session_options"),
        ("connector.hpp", "connector_options"),
        ("backoff_options.hpp", "backoff_options"),
        ("shared_receive_queue.hpp", "shared_receive_options"),
    ]:
        page += f"\n## {struct}\n{table(header, struct)}"
    return page


def statistics():
    return f"""# Statistics

Snapshots by value, cheap, from any thread. Counters begin at 0 with their object and never go back. Taken from the headers; a test compares them.

## connection::statistics()
{table("statistics.hpp", "connection_statistics", False)}
`sends_posted / doorbells` says how well operations are gathered, `completions_per_poll()` how busy the poller is, `slot_waits` and `read_depth_waits` whether a
queue is too short, `sends_signalled / sends_posted` what the accounts cost.

## acceptor::statistics()
{table("acceptor.hpp", "acceptor_statistics", False)}
## Besides

`connection::quarantined_count()`: objects that a device has not given back; 0 on devices that work.

The device counts too: `/sys/class/infiniband/*/ports/1/hw_counters` (on SoftRoCE `sent_pkts`, `rcvd_rnr_err`, `completer_retry_err`, `retry_exceeded_err`), and
`rdma resource` shows how many objects there are.
"""


def main():
    differs = False
    for name, page in [("options.md", options()), ("statistics.md", statistics())]:
        file = root / "docs/reference" / name
        if "--write" in sys.argv:
            file.write_text(page)
            continue
        difference = list(difflib.unified_diff(file.read_text().splitlines(), page.splitlines(), name, "the headers", lineterm=""))
        print("\n".join(difference))
        differs = differs or bool(difference)
    return 1 if differs else 0


sys.exit(main())
