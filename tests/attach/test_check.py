"""check.py tells what it could not test from what failed.

    python test_check.py
"""

import argparse
import contextlib
import io
import os
import pathlib
import signal
import sys
import tempfile
import unittest

import check

DIES = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"]
LIVES_AND_FAILS = [sys.executable, "-c", "raise SystemExit(3)"]
ARGS = argparse.Namespace(tensorscope="/bin/false", sql=None)


class DeathsBeforeWeAreLoaded(unittest.TestCase):
    def setUp(self):
        for cases in (check.PASSED, check.FAILED, check.UNTESTED):
            cases.clear()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        # Who looks for a failure in the log of all tests must not find these.
        self.printed = io.StringIO()
        silence = contextlib.redirect_stdout(self.printed)
        silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)

    def compare(self, command, is_prebuilt):
        folder = pathlib.Path(self.folder.name)
        self.assertIsNone(check.compare(ARGS, "case", command, folder, is_prebuilt=is_prebuilt))
        return check.PASSED, check.FAILED, check.UNTESTED

    def test_a_prebuilt_program_that_dies_by_itself_is_counted_and_no_failure(self):
        self.assertEqual(self.compare(DIES, is_prebuilt=True), ([], [], ["case"]))
        check.audit(ARGS, "audit", DIES, is_prebuilt=True)
        self.assertEqual(check.UNTESTED, ["case", "audit"])

    def test_a_program_that_we_compiled_has_no_excuse(self):
        self.assertEqual(self.compare(DIES, is_prebuilt=False), ([], ["case"], []))
        self.assertIn("FAILED case: it died with SIGILL", self.printed.getvalue())

    def test_a_bad_exit_is_a_failure_of_any_program(self):
        self.assertEqual(self.compare(LIVES_AND_FAILS, is_prebuilt=True), ([], ["case"], []))

    def test_the_signal_has_its_name(self):
        self.assertEqual(check.death(-signal.SIGILL), "SIGILL")
        self.assertEqual(check.death(128 + signal.SIGKILL), "SIGKILL")
        self.assertIsNone(check.death(0))
        self.assertIsNone(check.death(2))


if __name__ == "__main__":
    os.chdir(pathlib.Path(__file__).parent)
    unittest.main()
