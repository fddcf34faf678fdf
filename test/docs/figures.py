#!/usr/bin/env python3
"""figures.py [--write]: the figures in documents that are properties of the tree. They have marks, which a page does not show when it is rendered:

* A constant of files or folders, or arithmetic with several, in the unit that stands before the mark:
  `64 KiB<!-- figure: value_bytes_max in apps/rdma-copy/extended_attributes.hpp -->`
  `4144<!-- figure: slot_bytes - channel_head_bytes in lib/include/rcverbs/message_channel.hpp lib/src/wire -->`
* A table between `<!-- NAME: test/docs/figures.py writes this -->` and `<!-- end of NAME -->`; NAME is one of `tables`.

Without --write prints place, expected and found text of what differs, and exits with 1 if anything does. check.py does the same.
"""
import itertools
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
units = {None: 1, " kB": 1000, " MB": 1000**2, " KiB": 1 << 10, " MiB": 1 << 20, " GiB": 1 << 30}
code_lines_goal = 26500  # of lib/include and lib/src together

# A comment, or a literal: a string may contain what looks like a comment, and 1'000 no character.
token = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<raw>[^\s()\\]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"|\b\d(?:'?[\w.])*|'(?:\\.|[^'\\\n])+'""",
    re.S,
)

figure_mark = r"(\d[\d,.]*)( [kKMG]i?B)?<!-- figure: ([^<>]+) in ([^<>]+) -->"
table_mark = r"(?s)(<!-- ([\w ]+): test/docs/figures.py writes this -->)(.*?)(<!-- end of \2 -->)"


def without_comments(text):
    return token.sub(lambda found: "\n" * found[0].count("\n") if found["comment"] else found[0], text)


def code_lines(text):
    """Lines that are neither blank nor comment."""
    return sum(1 for line in without_comments(text).splitlines() if line.strip())


def closing(text, opening):
    """The place of the brace that closes the one at `opening`."""
    depth = 0
    for brace in re.compile("[{}]").finditer(text, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return len(text)


def data_members(text):
    """Name and data members of each class and struct, without those that are static and without those of bases."""
    text = token.sub(lambda found: found[0] if found[0][0].isdigit() else "" if found["comment"] else '""', text)
    text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", text, flags=re.M)
    head = r"(?<!enum )\b(?:class|struct)\b(?:\s+\w+_EXPORT|\s+alignas\([^)]*\))*(?:\s+([\w:]+))?(?:\s+final)?\s*(?::(?!:)[^{};()]*)?\{"
    for found in re.finditer(head, text):
        body = text[found.end() : closing(text, found.end() - 1)]
        # A pointer to a function looks like another member with a value. What is within braces becomes @, what is within parentheses `.
        body = re.sub(r"\(\*\s*(\w+)\s*\)\s*\(", r"*\1 = (", body)
        for inside, mark in ((r"\{[^{}]*\}", "@"), (r"\([^()]*\)", "`")):
            while re.search(inside, body):
                body = re.sub(inside, mark, body)
        names = []
        for statement in body.split(";")[:-1]:
            # A function ends without a semicolon, and so do public, protected and private. A class or an enumeration may precede a member's name.
            statement = re.split(r"@\s*(?=[a-zA-Z_~\[:])|\b(?:public|protected|private)\s*:(?!:)", statement)[-1].strip()
            if re.match(r"(?:inline )?(?:static|using|friend|typedef|template)\b|(?:class|struct|enum(?: class)?)(?: alignas`)? \w+\s*(?:[:@]|$)", statement):
                continue
            name = re.search(r"(?:^|[\w>&*@`\]]\s*[\s&*>])(\w+)\s*(?:@|=.*|\[.*\]\s*@?|:\s*\w+)?$", statement, re.S)
            if name and name[1] not in ("const", "noexcept", "override", "final", "operator"):
                names.append(name[1])
        yield found[1], names


def sources(*folders):
    return [f for folder in folders for f in sorted((root / folder).rglob("*.[hc]pp"))]


def up_to_hundred(count):
    return -(-count // 100) * 100


def markdown(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", "---:", "---"][: len(head)], *rows])


def code_lines_by_folder():
    folders = ["lib/include", *(f"lib/src/{f.name}" for f in sorted((root / "lib/src").iterdir())), "lib/fabric", "lib/nvme", "apps"]
    rows = [(folder, sum(code_lines(f.read_text()) for f in sources(folder))) for folder in folders]
    core = sum(count for folder, count in rows if folder.startswith(("lib/include", "lib/src")))
    rows.insert(-3, ("**lib/include and lib/src**", core))
    goal = "met" if core <= code_lines_goal else f"missed by {up_to_hundred(core - code_lines_goal):,}"
    table = markdown(["folder", "code lines"], [[folder, f"{up_to_hundred(count):,}"] for folder, count in rows])
    return f"{table}\n\nThe goal for lib/include and lib/src together is at most {code_lines_goal:,}: **{goal}**."


def largest_files():
    counted = [(-up_to_hundred(code_lines(f.read_text())), str(f.relative_to(root))) for f in sources("lib", "apps")]
    return markdown(["file", "code lines"], [[file, str(-count)] for count, file in sorted(counted)[:10]])


def largest_classes():
    counted = [(-len(m), name, str(f.relative_to(root))) for f in sources("lib", "apps") for name, m in data_members(f.read_text()) if name]
    return markdown(["class", "data members", "file"], [[f"`{name}`", str(-count), file] for count, name, file in sorted(counted)[:10]])


tables = {"code lines": code_lines_by_folder, "largest files": largest_files, "largest classes": largest_classes}


def evaluated(expression):
    """The value of a constant expression in C++ or shell; None if it has names."""
    plain = re.sub(r"[\w:]+\{([\d']+)U?\}", r"\1", expression).strip()
    plain = re.sub(r"(?<=\d)'(?=\d)|(?<=\d)[UL]+\b", "", plain)
    return eval(plain) if re.fullmatch(r"[\d\s()<>*+-]+", plain) else None


def constant(name, places):
    """The value of a constant that is in one of these files or folders, with one value."""
    files = [f for place in places for f in (sources(place) if (root / place).is_dir() else [root / place])]
    texts = [without_comments(f.read_text()) for f in files]
    found = [a or b for text in texts for a, b in re.findall(rf"\b{name}(?: ?= ?([^;\n]+)|\{{([^;{{}}\n]+)\}};)", text)]
    values = {evaluated(expression) for expression in found} - {None}
    if len(values) != 1:
        raise ValueError(f"{name} has {len(values)} values in {' '.join(places)}")
    return values.pop()


def with_true_figures(name, text):
    """The text of a document with the figures that the tree has, and a line about each that differs."""
    wrong = []

    def complain(found, at, what):
        line = found.string.count("\n", 0, at) + 1
        wrong.append(f"{name}:{line}: {what}")

    def figure(found):
        number, unit, terms, places = found.groups()
        try:
            value = evaluated(re.sub(r"[a-z]\w*", lambda term: str(constant(term[0], places.split())), terms))
        except (OSError, ValueError) as e:
            complain(found, found.start(), e)
            return found[0]
        value /= units[unit]
        if float(number.replace(",", "")) == value:
            return found[0]
        true = f"{value:,.0f}" if value >= 10000 else f"{value:g}"
        complain(found, found.start(), f"expected {true}{unit or ''}, found {number}{unit or ''}")
        return true + found[0].removeprefix(number)

    def table(found):
        begin, kind, old, end = found.groups()
        if kind not in tables:
            complain(found, found.start(), f"there is no table {kind}")
            return found[0]
        expected, lines = f"\n\n{tables[kind]()}\n\n".split("\n"), old.split("\n")
        for n, (true, line) in enumerate(itertools.zip_longest(expected, lines, fillvalue="")):
            if true != line:
                complain(found, found.start(3) + sum(len(before) + 1 for before in lines[:n]), f"expected {true!r}, found {line!r}")
                break
        return begin + "\n".join(expected) + end

    for mark in re.finditer(r"<!-- figure\b", re.sub(figure_mark, lambda found: "." * len(found[0]), text)):
        complain(mark, mark.start(), "a mark without a figure before it")
    new = re.sub(figure_mark, figure, text)
    return re.sub(table_mark, table, new), wrong


def differences(write=False):
    """A line about each figure in a document that differs from the tree; with `write`, it is mended."""
    wrong = []
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("docker/*.md")]):
        text = page.read_text()
        new, of_page = with_true_figures(page.relative_to(root), text)
        wrong += of_page
        if write:
            page.write_text(new)
    return wrong


def main():
    wrong = differences("--write" in sys.argv)
    if "--write" in sys.argv:
        wrong = differences()
    if wrong:
        print("\n".join(wrong), "run test/docs/figures.py --write", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
