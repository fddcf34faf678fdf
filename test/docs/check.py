#!/usr/bin/env python3
"""check.py PROGRAMS: the documents hold.

* Links lead to files and headings that exist.
* A block of C++ is part of a program that is compiled, one of CMake of the project that the package test builds.
* A block of shell commands calls programs that exist, with options that they have. (docs/start.md's are run: start.sh.)
* A picture in docs/images has every label of the text that it is drawn from.
* A public header begins with an example, which is part of such a program, too.
* A call of an asynchronous function within a sentence or a comment occurs in such a program.
* Names of errors that are mentioned are in the headers.
* Figures of the tree are true (figures.py).

PROGRAMS is the folder of the built programs.
"""
import html
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import figures

root = pathlib.Path(__file__).resolve().parents[2]
programs = pathlib.Path(sys.argv[1])
pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("docker/*.md")]
wrong = []


def unindented(text):
    """Without indentation and empty lines: an excerpt may be indented otherwise."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


compiled = {
    "cpp": [unindented(f.read_text()) for folder in ("docs/examples", "apps/examples") for f in (root / folder).glob("*pp")],
    "cmake": [unindented(f.read_text()) for f in (root / "test/package/consumer").glob("CMakeLists.txt")],
}


def anchor(heading):
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def headings(page):
    return {anchor(h) for h in re.findall(r"^#+ (.*)$", page.read_text(), re.M)}


def check_links(page, text):
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, part = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            wrong.append(f"{page}: no such file: {target}")
        elif part and part not in headings(file):
            wrong.append(f"{page}: no such heading: {target}")


def options_of(program, words):
    help_ = [program] + [w for w in words[:1] if w in ("server", "client", "loopback", "serve")] + ["--help"]
    said = subprocess.run(help_, capture_output=True, text=True).stdout
    return set(re.findall(r"(--[a-z][a-z-]*)", said))


def check_command(page, line):
    words = re.sub(r"[\"'();&|$]", " ", line).split()
    known = {"cp", "mkdir", "cmake", "ctest", "cpack", "sh", "docker", "wait", "sudo", "doxygen", "apt-get"}
    first = words[0]
    if first not in known and not (root / first).exists() and not (programs / pathlib.Path(first).name).exists():
        wrong.append(f"{page}: no such command: {line}")
    for i, word in enumerate(words):
        program = programs / pathlib.Path(word).name
        if not pathlib.Path(word).name.startswith("rdma-") or not program.exists():
            continue
        following = []
        for other in words[i + 1 :]:
            if pathlib.Path(other).name.startswith("rdma-"):
                break
            following.append(other)
        for option in following:
            if option.startswith("--") and option.split("=")[0] not in options_of(str(program), following):
                wrong.append(f"{page}: {word} has no {option}")


def check_blocks(page, text):
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M):
        if kind in compiled:
            if not any(unindented(block) in source for source in compiled[kind]):
                wrong.append(f"{page}: is compiled nowhere:\n{block}")
        elif kind == "sh":
            for line in block.splitlines():
                check_command(page, line)
        else:
            wrong.append(f"{page}: a block of {kind}, which nobody checks")


def check_names(page, text):
    every = "\n".join(f.read_text() for f in (root / "lib/include/rcverbs").glob("*.hpp"))
    for kind, name in re.findall(r"`(errc|wc_errc|cm_errc|close_reason|poll_mode|access_flags)::(\w+)`", text):
        if not re.search(rf"^\s+{name}\b", every, re.M):
            wrong.append(f"{page}: there is no {kind}::{name}")


def check_picture(text):
    picture = text.with_suffix(".svg")
    drawn = html.unescape(picture.read_text()).replace("\u00a0", " ") if picture.exists() else ""
    for label in re.findall(r'\blabel="([^"]*)"', text.read_text()):
        for line in label.split("\\n"):
            if line and f">{line}<" not in drawn:
                wrong.append(f"{picture}: has no {line!r}; run docs/images/draw")


for text in sorted((root / "docs/images").glob("*.dot")):
    check_picture(text)


def check_example(header):
    example = re.search(r"^//\n((?://     .*\n)+)", header.read_text().partition("#pragma once")[0], re.M)
    if not example:
        wrong.append(f"{header}: begins with no example")
    elif not any(unindented(example[1].replace("//     ", "")) in source for source in compiled["cpp"]):
        wrong.append(f"{header}: its example is compiled nowhere:\n{example[1]}")


def check_calls(page, text):
    """A call of an asynchronous function that is mentioned within a line compiles, too."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for code in re.findall(r"`([^`]+)`", prose):
        call = re.sub(r"\s+", "", code)
        if not re.search(r"\w\.(async|try)_\w+\([^)]", call) or "…" in call:
            continue
        if not any(call.rstrip(";") in re.sub(r"\s+", "", source) for source in compiled["cpp"]):
            wrong.append(f"{page}: is compiled nowhere: {code}")


for folder in ("lib/include/rcverbs", "lib/nvme/include/rcverbs/nvme"):
    for header in sorted((root / folder).glob("*.hpp")):
        check_example(header)
        comments = "\n".join(line.strip().lstrip("/ ") for line in header.read_text().splitlines() if line.strip().startswith("//"))
        check_calls(header, comments)
for page in pages:
    text = page.read_text()
    check_links(page, text)
    check_blocks(page, text)
    check_names(page, text)
    if "benchmarks" not in page.parts and "decisions" not in page.parts:
        check_calls(page, text)
if false_figures := figures.differences():
    wrong += [*false_figures, "run test/docs/figures.py --write"]
print("\n".join(wrong) if wrong else f"{len(pages)} documents hold")
sys.exit(1 if wrong else 0)
