"""reproduce.py fails when a number that has to be equal is not, and leaves out what cannot run here; card.py goes on after a piece that fails.

    python test_reproduce.py
"""

import contextlib
import io
import json
import shutil
import tempfile
import unittest
from pathlib import Path

import card
import reproduce
from pages import Data, Wrong


class Reproduced(unittest.TestCase):
    def ran(self, only=None, **part):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            path = root / "x.json"
            source = {"command": "x", "machine": "any", "date": "2026-11-18", "values": {"calls": 12}}
            path.write_text(json.dumps({"sources": [source], "reproduce": [part]}))
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                wrong = reproduce.reproduce(root, Data(root, path), "/bin/true", only)
            return wrong, said.getvalue()

    def compared(self, printed, how):
        row = {"value": "calls", "path": "calls", "is": how}
        return self.ran(run=f"echo '{{\"calls\": {printed}}}'", compare=[row])

    def test_equal_is_equal(self):
        self.assertEqual(self.compared(12, "equal")[0], 0)
        wrong, said = self.compared(13, "equal")
        self.assertEqual(wrong, 1)
        self.assertIn("WRONG: has to be equal", said)

    def test_near_is_within_a_few_per_cent(self):
        self.assertEqual(self.compared(12.5, "near")[0], 0)
        self.assertEqual(self.compared(14, "near")[0], 1)

    def test_times_are_shown_beside_what_is_published(self):
        wrong, said = self.compared(99, "shown")
        self.assertEqual(wrong, 0)
        self.assertRegex(said, r"calls +99 +published 12")
        self.assertEqual(self.compared("NaN", "shown")[0], 1)
        self.assertRaises(Wrong, self.compared, 12, "roughly")

    def test_only_what_needs_a_card_is_run_where_that_is_asked_for(self):
        self.assertEqual(self.ran(only="card", run="exit 3", compare=[])[0], 0)
        self.assertEqual(self.ran(only="processor", run="exit 3", compare=[])[0], 1)

    def test_a_command_that_fails_is_wrong(self):
        wrong, said = self.ran(run="echo no >&2; exit 3", compare=[])
        self.assertEqual(wrong, 1)
        self.assertIn("ended with 3: no", said)

    def test_a_number_that_is_not_printed_is_an_error(self):
        row = {"value": "calls", "pattern": r"(\d+) calls"}
        self.assertEqual(self.ran(run="echo 1,200 calls", compare=[row])[0], 0)
        with self.assertRaises(Wrong):
            self.ran(run="echo none", compare=[row])

    def test_what_cannot_run_here_is_left_out_and_said(self):
        wrong, said = self.ran(run="false", program="no-such-program", compare=[])
        self.assertEqual(wrong, 0)
        self.assertIn("left out: no-such-program is not installed", said)
        with self.assertRaises(Wrong):
            self.ran(run="true", needs="luck")


class OnACard(unittest.TestCase):
    def session(self, folder, seconds=60):
        session = card.Session(Path(folder), Path(folder) / "out", seconds)
        self.addCleanup(shutil.rmtree, session.work)
        return session

    def quietly(self, run, *words):
        with contextlib.redirect_stdout(io.StringIO()):
            return run(*words)

    def test_lines_where_the_debugger_stops_are_in_the_kernels(self):
        self.assertGreater(card.line_of(f"{card.KERNELS}/attention_decode.cu", "void decode_tensor(", "float scores[TILES][4]"), 1)
        self.assertGreater(card.line_of(f"{card.KERNELS}/gemm_f32.cu", "void shared(", "sum += a_tile[y][i]"), 1)
        for name in card.SOURCES:
            self.assertTrue((card.ROOT / card.CARD / f"{name}.cu").exists(), name)

    def test_a_piece_that_fails_or_hangs_does_not_stop_the_next(self):
        with tempfile.TemporaryDirectory() as folder:
            session = self.session(folder)
            self.quietly(session.run, "fails", "echo broken; exit 3")
            self.quietly(session.run, "hangs", "sleep 60 & sleep 60", 0.2)
            self.quietly(session.run, "works", "printf 'a\\tb  \\n'")
            self.assertEqual([row["code"] for row in session.rows], [3, "stopped: too slow", 0])
            self.assertEqual((session.texts / "works.txt").read_text(), "a       b\n")
            self.assertTrue((session.out / "posts.tar.gz").exists())

    def test_nothing_begins_without_time(self):
        with tempfile.TemporaryDirectory() as folder:
            session = self.session(folder, seconds=0)
            self.quietly(session.run, "late", "exit 0")
            self.assertEqual(session.rows[0]["code"], "left out: no time left")


if __name__ == "__main__":
    unittest.main()
