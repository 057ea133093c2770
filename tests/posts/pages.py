"""What a page claims, and where that comes from: the data file beside a post or a chapter.

docs/posts/data/README.md is the contract. Here a data file is read and its values are looked up in the
places that it names: results of the lab, outputs that are kept, other documents, rules, publications. A
value that is not where the file says is an error.
"""

import ast
import dataclasses
import datetime
import json
import math
import operator
import re
from pathlib import Path

FOLDERS = ("docs/posts", "docs/background")

NUMBER = re.compile(
    # Not inside a word or a version, and not the end of one that was cut.
    r"(?<![^\W_])(?<!\.)(?P<sign>[+−]|(?<![^\s(|~])-)?(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?P<fraction>\.\d+)?(?P<exponent>[eE][+-]?\d+)?"
)
ANOTHER = re.compile(r"^(?:\s?(?:to|and|or|–|,)\s?[+−]?\d[\d.,]*)+")
# By this factor a value in basic units is multiplied to be shown with what follows the number.
UNITS = (
    (re.compile(r"\s?(%|per cent)"), (100.0,)),
    (re.compile(r"\s?(k|thousand)\b"), (1e-3,)),
    (re.compile(r"\s?million\b|M\b"), (1e-6,)),
    (re.compile(r"\s?billion\b|B\b"), (1e-9,)),
    (re.compile(r"\s?k(B|FLOP|Hz)"), (1e-3,)),
    (re.compile(r"\s?M(B|FLOP|Hz)"), (1e-6,)),
    (re.compile(r"\s?G(B|FLOP|Hz)"), (1e-9,)),
    (re.compile(r"\s?T(B|FLOP)"), (1e-12,)),
    (re.compile(r"\s?KiB"), (2.0**-10,)),
    (re.compile(r"\s?MiB"), (2.0**-20,)),
    (re.compile(r"\s?GiB"), (2.0**-30,)),
    # Times are kept in nanoseconds, or in seconds.
    (re.compile(r"\s?ns\b"), (1e9,)),
    (re.compile(r"\s?µs\b"), (1e-3, 1e6)),
    (re.compile(r"\s?ms\b"), (1e-6, 1e3)),
    (re.compile(r"\s?(s|seconds?)\b"), (1e-9,)),
)
# Of one digit "2" could stand for 1.6: whatever is shown may be wrong by this share at most.
MOST_ROUNDED = 0.05


class Wrong(Exception):
    """What is wrong with a page, and where."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """A number as a page shows it."""

    text: str
    value: float
    decimals: int
    factors: tuple

    def is_of(self, value: float) -> bool:
        return any(self._rounds(value * factor) for factor in (1.0, *self.factors))

    def _rounds(self, value: float) -> bool:
        difference = abs(value - self.value)
        step = 0.5 * 10.0**-self.decimals
        return difference <= min(step, MOST_ROUNDED * abs(self.value)) * (1 + 1e-9) + 1e-12


def numbers(text: str):
    """Numbers of a text, each with its place."""
    for match in NUMBER.finditer(text):
        digits = match["digits"].replace(",", "") + (match["fraction"] or "")
        value = float(digits + (match["exponent"] or ""))
        decimals = len(match["fraction"] or ".") - 1 - int((match["exponent"] or "e0")[1:])
        if match["sign"] in ("−", "-"):
            value = -value
        rest = text[match.end() : match.end() + 40]
        # "from 18 to 34 %": the unit is that of both.
        rest = ANOTHER.sub("", rest)
        factors = tuple(f for unit, found in UNITS if unit.match(rest) for f in found)
        yield match.start(), Shown(match.group(), value, decimals, factors)


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS = {"min": min, "max": max, "abs": abs, "sum": sum, "sqrt": math.sqrt, "len": len}


def computed(expression: str, values: dict):
    """An expression of named values: + - * / **, min, max, abs, sum, sqrt, len, name[index]."""

    def of(node):
        match node:
            case ast.Expression(body=body):
                return of(body)
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name):
                if name not in values:
                    raise Wrong(f"`{expression}`: there is no value `{name}`")
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](of(left), of(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return FUNCTIONS[name](*(of(arg) for arg in args))
            case ast.Subscript(value=value, slice=index):
                return of(value)[of(index)]
        raise Wrong(f"`{expression}`: only named values, numbers, + - * / ** and {', '.join(FUNCTIONS)}")

    return of(ast.parse(expression, mode="eval"))


def names_in(expression: str) -> set:
    names = {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    return names - set(FUNCTIONS)


STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")


def at_path(document, path: str):
    """`rows[step=naive][case=4096].value.median`: one number, or a list where several rows fit."""
    found = [document]
    at = 0
    while at < len(path):
        step = STEP.match(path, at)
        if not step:
            raise Wrong(f"path `{path}`: not understood from `{path[at:]}` on")
        at = step.end()
        key, choice = step.groups()
        if key is not None:
            # Names with dots, as metrics have them, are written in quotes inside brackets.
            found = [item[key] for item in found if isinstance(item, dict) and key in item]
        elif choice.isdigit():
            found = [item[int(choice)] for item in found if int(choice) < len(item)]
        elif choice.startswith("'"):
            key = choice.strip("'")
            found = [item[key] for item in found if key in item]
        else:
            name, _, wanted = choice.partition("=")
            rows = [row for item in found for row in (item if isinstance(item, list) else [item])]
            found = [row for row in rows if isinstance(row, dict) and str(row.get(name)) == wanted]
    if not found:
        raise Wrong(f"path `{path}`: nothing is there")
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in found):
        raise Wrong(f"path `{path}`: not a number")
    return found[0] if len(found) == 1 else found


def as_list(value) -> list:
    """All numbers of a value: one, a list, or rows."""
    if isinstance(value, list):
        return [number for item in value for number in as_list(item)]
    return [value]


def is_date(text) -> bool:
    try:
        return isinstance(text, str) and datetime.date.fromisoformat(text) is not None
    except ValueError:
        return False


class Data:
    """The data file of a page, with every value looked up."""

    def __init__(self, root: Path, path: Path):
        self.root, self.path = root, path
        self.values: dict = {}
        self.dates: set = set()
        self.outputs: list = []  # (path, text, command)
        self.code: list = []  # (path, text)
        self.published: list = []
        self.problems: list = []
        self.needed: set = set()
        try:
            self.json = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise Wrong(f"{path.relative_to(root)}: {error}") from None
        known = {"names", "constants", "sources", "computed", "figures", "reproduce"}
        for key in set(self.json) - known:
            self._wrong(f"unknown key `{key}`")
        self.names = self.json.get("names", [])
        self.constants = self.json.get("constants", {})
        for name in self.names:
            if not re.match(r"[A-Za-z#]", name):
                self._wrong(f"names: `{name}` begins with no letter: a quantity needs a source")
        for phrase, reason in self.constants.items():
            if len(reason.split()) < 2:
                self._wrong(f"constants: `{phrase}` has no reason")
        for source in self.json.get("sources", []):
            try:
                self._read(source)
            except Wrong as wrong:
                self._wrong(str(wrong))
        for name, expression in self.json.get("computed", {}).items():
            try:
                self._put(name, computed(expression, self.values))
                self.needed |= names_in(expression)
            except (Wrong, ZeroDivisionError, TypeError, IndexError, SyntaxError) as error:
                self._wrong(f"computed `{name}`: {error}")

    def _wrong(self, what: str):
        self.problems.append(f"{self.path.relative_to(self.root)}: {what}")

    def _put(self, name: str, value):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise Wrong(f"`{name}`: names of values are small letters, digits and _")
        if name in self.values:
            raise Wrong(f"`{name}` is there twice")
        self.values[name] = value

    def _file(self, name: str) -> str:
        try:
            return (self.root / name).read_text()
        except OSError:
            raise Wrong(f"`{name}` is not there (paths begin at the root of the repository)") from None

    def _read(self, source: dict):
        kinds = {"file", "output", "document", "rule", "published", "seed", "code"} & set(source)
        if len(kinds) > 1:
            raise Wrong(f"a source is one of {', '.join(sorted(kinds))}, not both")
        kind = kinds.pop() if kinds else "command"
        getattr(self, f"_read_{kind}")(source, source.get("values", {}))

    def _measured(self, source: dict, where: str):
        for key in ("command", "machine"):
            if not source.get(key):
                raise Wrong(f"{where}: no `{key}`")
        if not is_date(source.get("date")):
            raise Wrong(f"{where}: no `date` (YYYY-MM-DD)")
        self.dates.add(source["date"])

    def _read_command(self, source: dict, values: dict):
        self._measured(source, f"source `{source.get('command', '?')}`")
        for name, value in values.items():
            self._put(name, value)

    def _read_file(self, source: dict, values: dict):
        name = source["file"]
        document = json.loads(self._file(name))
        inside = document if isinstance(document, dict) else {}
        if "unix_seconds" in inside and "command" in inside and "machine" in inside:
            seconds = datetime.datetime.fromtimestamp(inside["unix_seconds"], datetime.UTC)
            self.dates.add(seconds.date().isoformat())
        else:
            self._measured(source, name)
        for value, path in values.items():
            self._put(value, at_path(document, path))

    def _read_output(self, source: dict, values: dict):
        name = source["output"]
        self._measured(source, name)
        text = self._file(name)
        self.outputs.append((name, text, source["command"]))
        self._found_in(name, text, values)

    def _read_document(self, source: dict, values: dict):
        """Values are quotes: each is in the document as it is, and its numbers are the value."""
        name = source["document"]
        text = " ".join(self._file(name).split())
        for value, quote in values.items():
            if " ".join(quote.split()) not in text:
                raise Wrong(f"{name}: `{quote}` is not there")
            found = [shown.value for _, shown in numbers(quote)]
            if not found:
                raise Wrong(f"{name}: `{quote}` has no number")
            self._put(value, found[0] if len(found) == 1 else found)

    def _read_rule(self, source: dict, values: dict):
        rule = source["rule"]
        text = self._file("docs/rules.md")
        row = next((line for line in text.splitlines() if line.startswith(f"| `{rule}`")), None)
        if row is None:
            raise Wrong(f"docs/rules.md has no rule `{rule}`")
        self._found_in(f"rule `{rule}`", row, values)

    def _read_published(self, source: dict, values: dict):
        about = source["published"]
        for key in ("title", "author", "year", "where", "supports"):
            if not about.get(key):
                raise Wrong(f"published `{about.get('title', '?')}`: no `{key}`")
        self.published.append(about)
        for name, value in values.items():
            self._put(name, value)

    def _read_seed(self, source: dict, values: dict):
        if not source.get("where"):
            raise Wrong(f"seed {source['seed']}: no `where`")
        for name, value in values.items():
            self._put(name, value)

    def _read_code(self, source: dict, values: dict):
        if values:
            raise Wrong("code has no values")
        self.code.append((source["code"], self._file(source["code"])))

    def _found_in(self, where: str, text: str, values: dict):
        """A value of a text is a number that is printed there."""
        there = {abs(shown.value) for _, shown in numbers(text)}
        # Beside letters and in columns numbers end otherwise than in prose.
        for match in re.finditer(r"\d[\d,]*(?:\.\d+)?", text):
            there.add(float(match.group().replace(",", "")))
        for name, value in values.items():
            for number in as_list(value):
                if abs(number) not in there:
                    raise Wrong(f"{where}: `{name}`: {number} is not printed there")
            self._put(name, value)
