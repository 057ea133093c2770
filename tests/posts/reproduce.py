"""Runs what the posts say, and prints what comes out beside what is published.

    python reproduce.py --tensorscope TENSORSCOPE [--needs card] [NAME…]

`reproduce` in a page's data file says what is run and which value of the page it gives
(docs/posts/data/README.md). What must be equal is compared; times are shown, and only must be there. What
needs a card, root, or a program that is missing is left out and said so. Exit code 1 where something
does not run or is not equal.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from check import pages_of
from pages import Data, Wrong, as_list, at_path

NEEDS = ("processor", "root", "card")
# Counts that a library or a kernel may change a little.
NEAR = 0.05


def has_card() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def left_out(part: dict) -> str | None:
    """Why a part cannot run here."""
    needs = part.get("needs", "processor")
    if needs not in NEEDS:
        raise Wrong(f"needs `{needs}`: one of {', '.join(NEEDS)}")
    if needs == "card" and not has_card():
        return "no card"
    if needs == "root" and os.geteuid() != 0:
        return "not root"
    program = part.get("program")
    if program and not shutil.which(program):
        return f"{program} is not installed"
    return None


def printed(part: dict, output: str):
    """Of each value of the page: its name, what came out, and whether it has to be the same."""
    document = None
    for row in part.get("compare", []):
        if "path" in row:
            document = json.loads(output) if document is None else document
            found = at_path(document, row["path"])
        else:
            match = re.search(row["pattern"], output, re.MULTILINE)
            if not match:
                raise Wrong(f"`{row['value']}`: `{row['pattern']}` is not in the output")
            found = float(match.group(1).replace(",", ""))
        yield row["value"], found, row.get("is", "shown")


def judged(published, found, how: str) -> str | None:
    """What is wrong with a value, if anything."""
    pairs = list(zip(as_list(published), as_list(found), strict=True))
    if not all(math.isfinite(new) for _, new in pairs):
        return "not a number"
    match how:
        case "equal":
            return None if all(old == new for old, new in pairs) else "has to be equal"
        case "near":
            is_near = all(abs(new - old) <= NEAR * abs(old) for old, new in pairs)
            return None if is_near else "is off by more than 5 %"
        case "shown":
            return None
    raise Wrong(f"is `{how}`: one of equal, near, shown")


def amount(value) -> str:
    return ", ".join(f"{number:,.6g}" for number in as_list(value))


def reproduce(root: Path, data: Data, tensorscope: str, needs: str | None = None) -> int:
    wrong = 0
    for part in data.json.get("reproduce", []):
        if needs and part.get("needs", "processor") != needs:
            continue
        print(f"    $ {part['run']}", flush=True)
        reason = left_out(part)
        if reason:
            print(f"      left out: {reason}")
            continue
        with tempfile.TemporaryDirectory() as work:
            environment = {**os.environ, "WORK": work, "TENSORSCOPE": tensorscope, "NO_COLOR": "1"}
            begin = time.monotonic()
            done = subprocess.run(["sh", "-c", part["run"]], cwd=root, env=environment, capture_output=True, text=True)
            seconds = time.monotonic() - begin
        if done.returncode != 0:
            print(f"      ended with {done.returncode}: {done.stderr[-600:]}")
            wrong += 1
            continue
        for name, found, how in printed(part, done.stdout + done.stderr * part.get("both", False)):
            published = data.values[name]
            problem = judged(published, found, how)
            wrong += problem is not None
            print(f"      {name:<34} {amount(found):>16}   published {amount(published)}{f'   WRONG: {problem}' if problem else ''}")
        print(f"      {seconds:.1f} s", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--tensorscope", required=True)
    parser.add_argument("--needs", choices=NEEDS, help="only the parts that need this")
    parser.add_argument("names", nargs="*", help="pages, without .md; all if none is named")
    args = parser.parse_args()
    pages = [page for page in pages_of(args.root) if not args.names or page.stem in args.names]
    unknown = set(args.names) - {page.stem for page in pages}
    if unknown:
        print(f"    there is no page {', '.join(sorted(unknown))}")
        return 2
    wrong = 0
    for page in pages:
        data = Data(args.root, page.parent / "data" / f"{page.stem}.json")
        if data.json.get("reproduce"):
            print(f"    {page.relative_to(args.root)}", flush=True)
            try:
                wrong += reproduce(args.root, data, args.tensorscope, args.needs)
            except (Wrong, ValueError) as error:
                print(f"      {error}")
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
