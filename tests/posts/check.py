"""Every number of every post and chapter is in its data file, and everything else that a page promises.

    python check.py [--tensorscope TENSORSCOPE] [--bless] [PAGE…]

docs/posts/data/README.md is the contract. Without a program figures are not drawn again, which is said.
Violations are lines `file:line: what`; the exit code is 1 where there are any. test_check.py damages a
page, one place at a time, and expects this to notice.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import FOLDERS, Data, Wrong, as_list, numbers

MOST_WORDS = 2500
LEAST_SOURCES = 3
# What every post has, as headings; a chapter of the background needs none of them.
SECTIONS = (
    "Summary",
    "Hypothesis",
    "Method",
    "Measurements",
    "Tools and their output",
    "Code and machine code",
    "Flame graph",
    "Symptoms and actions",
    "Reproduce it",
    "References",
)

FENCE = re.compile(r"^\s*```(\S*)")
# Blocks whose lines somebody printed, that somebody wrote, and that are only to be typed.
PRINTED, WRITTEN, TYPED = {"text", "console"}, {"cuda", "c", "rust", "asm", "python", "toml"}, {"sh"}
LEFT_OUT = "…"


def problems(root: Path, page: Path, tensorscope: str | None, bless: bool) -> list:
    """All that is wrong with a page, as lines."""
    name = page.relative_to(root)
    path = page.parent / "data" / f"{page.stem}.json"
    try:
        data = Data(root, path)
    except Wrong as wrong:
        return [str(wrong)]
    text = page.read_text()
    prose, blocks = split(text)
    found = list(data.problems)
    if found:
        return found
    used = set(data.needed)
    found += [f"{name}:{line}: {what}" for line, what in numbers_without_source(prose, data, used)]
    for line, kind, body in blocks:
        found += [f"{name}:{line}: {what}" for what in block_without_source(kind, body, data)]
    found += [f"{name}:{line}: {what}" for line, what in dead_links(prose, page, root)]
    found += figures(page, prose, data, used, tensorscope, bless)
    words = sum(len(line.split()) for line in prose)
    if words > MOST_WORDS:
        found.append(f"{name}: {words} words; {MOST_WORDS} at most (outside of blocks)")
    for about in data.published:
        if about["title"] not in " ".join(text.split()):
            found.append(f"{name}: `{about['title']}` is a source and is not named on the page")
    if page.parent.name == "posts" and page.stem != "README":
        found += parts_of_a_post(name, prose, data, root)
    for value in sorted(set(data.values) - used - used_to_reproduce(data)):
        found.append(f"{path.relative_to(root)}: `{value}` is not used on the page")
    return found


def split(text: str):
    """The lines of a page with those of fenced blocks empty, and the blocks: line, kind, lines."""
    prose, blocks, block = [], [], None
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and block is None:
            block = (number, fence.group(1), [])
        elif fence:
            blocks.append(block)
            block = None
        elif block is not None:
            block[2].append(line)
        prose.append("" if fence or block is not None else line)
    return prose, blocks


def blank(text: str, pattern: str) -> str:
    """What fits is spaces from now on, so that places stay the same."""
    return re.sub(pattern, lambda found: " " * len(found.group()), text)


def phrase(words: str) -> str:
    """These words, in one line or over its end, not as a part of others."""
    inside = r"\s+".join(re.escape(word) for word in words.split())
    before = r"(?<![\w.,])" if words[0].isalnum() else ""
    after = r"(?![\w]|[.,]\d)" if words[-1].isalnum() else ""
    return before + inside + after


def claims(prose: list, data: Data) -> str:
    """The text with everything blank whose numbers are no claims; constants are noted as used."""
    text = "\n".join(prose)
    text = blank(text, r"<!--(?s:.*?)-->")
    text = blank(text, r"(?m)^\s*\d+\. ")
    text = blank(text, r"(?<=\])\([^)\s]*\)")  # where links lead
    text = blank(text, r"<[a-zA-Z/][^>]*>|https?://[^\s)>]+")
    # A name in backticks is no claim; a number in backticks is one.
    text = re.sub(
        r"`[^`\n]*`",
        lambda code: code.group() if re.fullmatch(r"`[\d.,+−%× ]+[a-zA-Z/%]{0,6}`", code.group()) else " " * len(code.group()),
        text,
    )
    # Dates are those of sources.
    for date in data.dates:
        text = blank(text, rf"(?<!\d){date}(?!\d)")
    for about in data.published:
        text = blank(text, phrase(about["title"]))
        text = blank(text, rf"(?<![\w.,]){about['year']}(?![\w%])")
    for name in sorted(data.names, key=len, reverse=True):
        text = blank(text, phrase(name))
    for words in sorted(data.constants, key=len, reverse=True):
        text = blank(text, phrase(words))
    # Names with hyphens: AVX-512, Llama-2-7B; issues: #123.
    text = blank(text, r"(?<![\w-])[A-Za-z][\w.]*(?:-[\w.]+)+|(?<!\w)#\d+")
    return text


def numbers_without_source(prose: list, data: Data, used: set):
    whole = "\n".join(prose)
    for kind, words in [("names", n) for n in data.names] + [("constants", c) for c in data.constants]:
        if not re.search(phrase(words), whole):
            yield 1, f"`{words}` of {kind} is not on the page"
    text = claims(prose, data)
    for place, shown in numbers(text):
        fitting = {name for name, value in data.values.items() if any(shown.is_of(v) for v in as_list(value))}
        used |= fitting
        if not fitting:
            line = text.count("\n", 0, place) + 1
            after = whole[place + len(shown.text) :].split("\n")[0][:24]
            yield line, f"`{shown.text}{after}` is in no source of {data.path.name}"


def block_without_source(kind: str, body: list, data: Data):
    if kind in TYPED:
        return
    if kind in PRINTED:
        places = [(name, text) for name, text, _ in data.outputs]
        commands = [command for _, _, command in data.outputs]
        for line in body:
            if line.startswith("$ ") and line[2:] not in commands:
                yield f"`{line}` is the command of no output that is kept"
        body = [line for line in body if not line.startswith("$ ")]
    elif kind in WRITTEN:
        places = data.code + [(name, text) for name, text, _ in data.outputs]
    else:
        yield f"a block of `{kind}`: it is one of {', '.join(sorted(PRINTED | WRITTEN | TYPED))}"
        return
    best = body
    for _, text in places:
        missing = lines_missing(body, text)
        if not missing:
            return
        best = min(best, missing, key=len)
    if body:
        yield f"not in any file that is named as its source: `{best[0].strip()}`"


def lines_missing(body: list, text: str) -> list:
    """Lines that are not found in order; `…` stands for lines that were left out."""
    lines = [line.strip() for line in text.splitlines()]
    at, gap, missing = 0, True, []
    for line in body:
        wanted = line.strip()
        if wanted == LEFT_OUT or not wanted:
            gap = gap or wanted == LEFT_OUT
            continue
        while at < len(lines) and not lines[at]:
            at += 1
        if not gap and (at >= len(lines) or lines[at] != wanted):
            missing.append(line)
            continue
        try:
            at = lines.index(wanted, at) + 1
            gap = False
        except ValueError:
            missing.append(line)
    return missing


def links(line: str):
    for part in line.split("`")[::2]:
        yield from re.findall(r"\]\(([^)\s]+)\)", part)
    # A link whose text is code: [`rule`](target).
    yield from re.findall(r"`\]\(([^)\s]+)\)", line)


def anchors(text: str) -> set:
    """As GitHub makes them of headings."""
    heads = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")).replace(" ", "-") for head in heads}


def dead_links(prose: list, page: Path, root: Path):
    for number, line in enumerate(prose, 1):
        for link in set(links(line)):
            if "://" in link or link.startswith("mailto:"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                yield number, f"dead link `{link}`"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
                yield number, f"dead link `{link}`: no such heading"


def parts_of_a_post(name: Path, prose: list, data: Data, root: Path):
    heads = [line[3:].strip() for line in prose if line.startswith("## ")]
    if heads != list(SECTIONS):
        yield f"{name}: sections are {heads}, and should be {list(SECTIONS)}"
    if len(data.published) < LEAST_SOURCES:
        yield f"{name}: {len(data.published)} published sources; {LEAST_SOURCES} at least"
    if not data.json.get("figures"):
        yield f"{name}: no figure"
    if not data.json.get("reproduce"):
        yield f"{name}: nothing is reproduced"
    yield from symptoms(name, prose, (root / "docs/rules.md").read_text())


def symptoms(name: Path, prose: list, rules: str):
    """Rows of the table of symptoms link rules that exist, at their kind."""
    kinds, kind = {}, None
    for line in rules.split("## Shipped rules", 1)[1].splitlines():
        if line.startswith("### "):
            kind = line[4:].strip()
        elif rule := re.match(r"\| `([^`]+)`", line):
            kinds[rule.group(1)] = kind
    inside, rows = False, 0
    for number, line in enumerate(prose, 1):
        if line.startswith("## "):
            inside = line[3:].strip() == "Symptoms and actions"
        if not inside or not line.startswith("|") or rows == 0 and "|---" in line:
            continue
        found = re.findall(r"\[`([^`]+)`\]\(\.\./rules\.md#([a-z]+)\)", line)
        if "|---" in line:
            continue
        is_head = number < len(prose) and "|---" in prose[number]
        if is_head:
            continue
        rows += 1
        if not found:
            yield f"{name}:{number}: a symptom without a link to a rule"
        for rule, kind in found:
            if kinds.get(rule) != kind:
                yield f"{name}:{number}: no rule `{rule}` among those of `{kind}` in docs/rules.md"
    if not rows:
        yield f"{name}: no table of symptoms"


def figures(page: Path, prose: list, data: Data, used: set, tensorscope: str | None, bless: bool):
    """Figures are drawn from values by their names, and are what is committed, byte for byte."""
    root = data.root
    text = "\n".join(prose)
    declared = data.json.get("figures", {})
    elsewhere = figures_of_others(page) if page.stem == "README" else set()
    for link in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text):
        if "/" not in link and link not in declared and link not in elsewhere:
            yield f"{page.relative_to(root)}: figure `{link}` is drawn from nothing"
    for name, figure in declared.items():
        where = f"{data.path.relative_to(root)}: figure `{name}`"
        if f"({name})" not in text:
            yield f"{where}: not shown on the page"
        try:
            resolved = resolve(figure, data, used)
        except Wrong as wrong:
            yield f"{where}: {wrong}"
            continue
        words = " ".join([figure.get("title", ""), figure.get("caption", "")])
        for _, what in numbers_without_source_of(words, data, used):
            yield f"{where}: {what}"
        if tensorscope is None:
            continue
        drawn = draw(tensorscope, resolved)
        if bless:
            (page.parent / name).write_text(drawn)
        committed = page.parent / name
        if not committed.exists() or committed.read_text() != drawn:
            yield f"{committed.relative_to(root)}: not what is drawn from the data: run with --bless, and look at it"


def figures_of_others(page: Path) -> set:
    """An index shows the figures of its pages."""
    files = (page.parent / "data").glob("*.json")
    return {name for file in files for name in json.loads(file.read_text()).get("figures", {})}


def numbers_without_source_of(words: str, data: Data, used: set):
    text = claims([words], data)
    for place, shown in numbers(text):
        fitting = {name for name, value in data.values.items() if any(shown.is_of(v) for v in as_list(value))}
        used |= fitting
        if not fitting:
            yield place, f"`{shown.text}` of its words is in no source"


def resolve(figure: dict, data: Data, used: set) -> dict:
    """The same figure with numbers in place of names of values."""

    def number(name):
        if not isinstance(name, str) or name not in data.values:
            raise Wrong(f"there is no value `{name}`")
        used.add(name)
        return data.values[name]

    resolved = dict(figure)
    if "stacks" in figure:
        resolved["stacks"] = (data.root / figure["stacks"]).read_text()
    if "bars" in figure:
        resolved["bars"] = [{**bar, "value": number(bar["value"])} for bar in figure["bars"]]
    if "lines" in figure:
        resolved["lines"] = [{**line, "values": [number(name) for name in line["values"]]} for line in figure["lines"]]
    return resolved


def draw(tensorscope: str, figure: dict) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.json"
        path.write_text(json.dumps(figure))
        subprocess.run([tensorscope, "lab", "--figure", str(path)], check=True)
        return path.with_suffix(".svg").read_text()


def used_to_reproduce(data: Data) -> set:
    return {row["value"] for part in data.json.get("reproduce", []) for row in part.get("compare", [])}


def pages_of(root: Path) -> list:
    return sorted(page for folder in FOLDERS for page in (root / folder).glob("*.md"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--tensorscope", help="draws the figures again; without it they are not looked at")
    parser.add_argument("--bless", action="store_true", help="writes the figures")
    parser.add_argument("pages", nargs="*", type=Path)
    args = parser.parse_args()
    pages = [page.resolve() for page in args.pages] or pages_of(args.root)
    wrong = 0
    for page in pages:
        for line in problems(args.root, page, args.tensorscope, args.bless):
            print(f"    {line}")
            wrong += 1
    drawn = "figures as drawn" if args.tensorscope else "figures not drawn again: no --tensorscope"
    print(f"    {len(pages)} pages, {wrong} violations, {drawn}")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
