"""check.py fails when a number has no source, and when anything else that a page promises is not so.

    python test_check.py

A small post that is right is damaged, one place at a time.
"""

import json
import tempfile
import unittest
from pathlib import Path

import check
from pages import numbers

RULES = """# Rules

## Shipped rules

### kernel

| rule | holds when | what to do | source |
|---|---|---|---|
| `kernel.memory_bound`<br>slow | `dram.share >= 0.6` | load 16 bytes | NVIDIA |
"""

LAB = {
    "machine": {"processor": "AMD EPYC"},
    "command": "tensorscope lab gemm",
    "unix_seconds": 1794884762,
    "rows": [
        {"step": "naive", "case": "4096", "value": {"median": 0.4986}},
        {"step": "vector", "case": "4096", "value": {"median": 40.9012}},
        {"step": "vector", "case": "8192", "value": {"median": 42.3}},
    ],
    "metrics": {"dram__bytes.sum": 8452548352.0},
}

POST = """# A post about an H200 and Zen 4

## Summary
From 0.499 to 40.9 TFLOP/s, 82 times, with 8.45 GB read; measured 2026-11-17 with AVX-512.

## Hypothesis
A line of 64 bytes is read whole. It costs 12 % more.

## Method
1. Count.
2. Look at `gemm_f32`.

## Measurements
| step | TFLOP/s | published |
|---|---|---|
| naive | 0.499 | 309 |

![bars](x.svg)

## Tools and their output
```text
$ strace -c true
…
 1,234 futex
```

## Code and machine code
```c
int a = 4096;
```

## Flame graph
None.

## Symptoms and actions
| symptom | rule |
|---|---|
| slow | [`kernel.memory_bound`](../rules.md#kernel) at 0.6 |

## Reproduce it
See [the rules](../rules.md).

## References
Some Paper (2009), Another Paper (2010), A Third (2011): 309 GFLOP/s.
"""


def paper(title, year):
    return {"title": title, "author": "A", "year": year, "where": "p. 1", "supports": "that"}


DATA = {
    "names": ["Zen 4"],
    "constants": {"64 bytes": "a cache line of this processor"},
    "sources": [
        {
            "file": "docs/lab/gemm.json",
            "values": {
                "naive": "rows[step=naive][case=4096].value.median",
                "vector": "rows[step=vector][case=4096].value.median",
                "read": "metrics['dram__bytes.sum']",
            },
        },
        {
            "output": "docs/posts/data/x/strace.txt",
            "command": "strace -c true",
            "machine": "two cores",
            "date": "2026-11-18",
            "values": {},
        },
        {"code": "a.c"},
        {"rule": "kernel.memory_bound", "values": {"wall": 0.6}},
        {"document": "docs/other.md", "values": {"more": "costs 12 % more"}},
        {"published": paper("Some Paper", 2009), "values": {"published": 309}},
        {"published": paper("Another Paper", 2010)},
        {"published": paper("A Third", 2011)},
    ],
    "computed": {"gain": "vector / naive"},
    "figures": {"x.svg": {"title": "Two", "bars": [{"name": "naive", "value": "naive"}]}},
    "reproduce": [{"run": "true", "compare": []}],
}


class Damaged(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.put("docs/rules.md", RULES)
        self.put("docs/other.md", "It costs 12 %\nmore.\n")
        self.put("docs/lab/gemm.json", json.dumps(LAB))
        self.put("docs/posts/data/x/strace.txt", "calls\n 1,234 futex\n 5 read\n")
        self.put("a.c", "  int a = 4096;\n  int b;\n")
        self.put("docs/posts/x.svg", "a picture")

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def found(self, post=POST, data=None):
        self.put("docs/posts/x.md", post)
        self.put("docs/posts/data/x.json", json.dumps(DATA if data is None else data))
        return check.problems(self.root, self.root / "docs/posts/x.md", None, False)

    def assert_noticed(self, what, post=POST, data=None):
        found = self.found(post, data)
        self.assertTrue(any(what in line for line in found), f"{what!r} is not in {found}")

    def damage(self, old, new, what):
        self.assertIn(old, POST)
        self.assert_noticed(what, POST.replace(old, new, 1))

    def damage_data(self, change, what):
        data = json.loads(json.dumps(DATA))
        change(data)
        self.assert_noticed(what, data=data)

    def test_a_post_that_is_right_passes(self):
        self.assertEqual(self.found(), [])

    def test_a_number_without_a_source_is_found_with_its_line(self):
        self.damage("40.9 TFLOP/s", "41.9 TFLOP/s", "docs/posts/x.md:4: `41.9 TFLOP/s")
        self.damage("| 0.499 | 309 |", "| 0.499 | 310 |", "x.md:16: `310")
        self.damage("A post about", "A post of 7 about", "x.md:1: `7")
        self.damage("None.", "None but 3.", "x.md:33: `3")
        self.damage("`gemm_f32`", "`3.2 ms`", "`3.2 ms")

    def test_digits_that_are_shown_must_be_right(self):
        self.damage("0.499 to", "0.4985 to", "`0.4985")
        self.damage("82 times", "83 times", "`83")
        # 0.4986 is no 1, and 0.6 no 1 either.
        self.damage("0.499 to", "1 to", "`1 to")

    def test_units_are_taken_into_account(self):
        self.damage("8.45 GB", "8.45 MB", "`8.45 MB")
        self.damage("8.45 GB", "8.45 lines", "`8.45 lines")
        self.assertEqual(self.found(POST.replace("8.45 GB", "8,452,548,352 B")), [])

    def test_the_unit_of_a_range_is_that_of_both_ends(self):
        self.assertEqual(self.found(POST.replace("costs 12 % more", "costs 12 to 12 % more")), [])
        self.damage("12 % more", "11 to 12 % more", "`11 to 12 %")

    def test_constants_hold_only_where_their_words_stand(self):
        self.damage("64 bytes", "64 words", "`64 words")
        self.damage("64 bytes", "164 bytes", "`164 bytes")
        self.damage_data(lambda data: data["constants"].update({"64 bytes": "so"}), "has no reason")
        self.damage_data(lambda data: data["names"].append("3 times"), "begins with no letter")
        self.damage_data(lambda data: data["names"].append("Zen 5"), "is not on the page")

    def test_a_date_is_that_of_a_source(self):
        self.damage("2026-11-17", "2026-11-16", "is in no source")

    def test_output_is_what_was_printed(self):
        self.damage(" 1,234 futex", " 1,235 futex", "x.md:21: not in any file")
        self.damage("$ strace -c true", "$ strace -c false", "is the command of no output")
        self.damage("```text", "```", "a block of ``")

    def test_code_is_what_is_in_the_repository(self):
        self.damage("int a = 4096;", "int a = 2048;", "not in any file")

    def test_values_are_where_the_data_says(self):
        def paths(data, path):
            data["sources"][0]["values"]["naive"] = path

        self.damage_data(lambda data: paths(data, "rows[step=gone].value.median"), "nothing is there")
        self.damage_data(lambda data: paths(data, "rows[step=naive].case"), "not a number")
        self.damage_data(lambda data: data["sources"][1]["values"].update({"reads": 6}), "is not printed there")
        self.damage_data(lambda data: data["sources"][3]["values"].update({"wall": 0.7}), "is not printed there")
        self.damage_data(lambda data: data["sources"][4]["values"].update({"more": "costs 13 % more"}), "is not there")
        self.damage_data(lambda data: data["sources"][3].update({"rule": "kernel.gone"}), "no rule")

    def test_a_measurement_has_a_command_a_machine_and_a_date(self):
        for key in ("command", "machine", "date"):
            self.damage_data(lambda data, key=key: data["sources"][1].pop(key), f"no `{key}`")

    def test_values_that_nobody_uses_are_named(self):
        self.damage_data(lambda data: data["sources"][5]["values"].update({"spare": 77}), "`spare` is not used")

    def test_a_symptom_links_a_rule_that_exists(self):
        self.damage("`kernel.memory_bound`]", "`kernel.gone`]", "no rule `kernel.gone`")
        self.damage("[`kernel.memory_bound`](../rules.md#kernel)", "it", "a symptom without a link")

    def test_links_lead_somewhere(self):
        self.damage("(../rules.md)", "(../gone.md)", "dead link")
        self.damage("(../rules.md)", "(../rules.md#gone)", "no such heading")

    def test_a_post_has_all_its_parts(self):
        self.damage("## Hypothesis\n", "", "sections are")
        self.damage("None.", "word " * 2500, "2500 at most")
        self.damage_data(lambda data: data["sources"].pop(), "2 published sources")
        self.damage_data(lambda data: data["sources"][5]["published"].update(title="Gone"), "is not named on the page")
        self.damage_data(lambda data: data["figures"].clear(), "drawn from nothing")
        self.damage_data(lambda data: data["reproduce"].clear(), "nothing is reproduced")

    def test_figures_are_drawn_from_values_and_are_what_is_committed(self):
        def bar(data, value):
            data["figures"]["x.svg"]["bars"][0]["value"] = value

        self.damage_data(lambda data: bar(data, "gone"), "no value `gone`")
        self.damage_data(lambda data: bar(data, 0.5), "no value `0.5`")
        self.damage_data(lambda data: data["figures"]["x.svg"].update(title="Of 3"), "`3` of its words")
        program = self.root / "program"
        program.write_text('#!/bin/sh\nprintf "a picture" > "${3%.json}.svg"\n')
        program.chmod(0o755)
        page = self.root / "docs/posts/x.md"
        self.found()
        self.assertEqual(check.problems(self.root, page, str(program), False), [])
        self.put("docs/posts/x.svg", "another picture")
        self.assertIn("not what is drawn", check.problems(self.root, page, str(program), False)[0])

    def test_numbers_are_read_as_people_write_them(self):
        def read(text):
            return [shown.value for _, shown in numbers(text)]

        self.assertEqual(read("1,024 and 0.5, −3 % (+4), 1.7e-3; 3–5"), [1024, 0.5, -3, 4, 0.0017, 3, 5])
        self.assertEqual(read("H200, L2, bf16, v1.2.3"), [])
        self.assertEqual(read("12,34 _5_ **6** (7) ~8 ×9 1,234,567"), [12, 34, 5, 6, 7, 8, 9, 1234567])


if __name__ == "__main__":
    unittest.main()
