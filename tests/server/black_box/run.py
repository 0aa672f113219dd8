#!/usr/bin/env python3
"""Runs the black-box suite: cases of public reports about other servers (docs/SERVER.md, "Cases"), each named by its
number, against the real `longspan` and `longspan_mock` programs. Python's standard library alone; the cases with the
openai and anthropic clients are skipped where those are not installed.

run.py [--full] [--minutes N] [CASE...]   run.py T71 T73; --full: the long forms (1,000 aborts, 200 prompts, ...);
--minutes: how long the mixed load of T76 lasts

LONGSPAN_BIN_DIR says where the programs are. Where GTEST_OUTPUT=xml:DIR/ is set, as by scripts/test, the cases are
reported there as GoogleTest would."""
import argparse
import os
import pathlib
import sys
import time
import unittest
import xml.etree.ElementTree as ET

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
NAME = "black_box_test"


class Result(unittest.TextTestResult):
    """Remembers seconds and outcome of every case."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases = []
        self.started = 0

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()
        self.outcome, self.why = "passed", ""

    def stopTest(self, test):
        self.cases.append((type(test).__name__, test._testMethodName.removeprefix("test_"), self.outcome, self.why,
                           time.monotonic() - self.started))
        super().stopTest(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome, self.why = "failed", self.failures[-1][1]

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome, self.why = "failed", self.errors[-1][1]

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome, self.why = "skipped", reason


def write_xml(path, cases):
    root = ET.Element("testsuites", name=NAME)
    for group, name, outcome, why, seconds in cases:
        case = ET.SubElement(root, "testcase", classname=group, name=name, time=f"{seconds:.3f}",
                             status="notrun" if outcome == "skipped" else "run")
        if outcome == "failed":
            ET.SubElement(case, "failure", message=why)
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(root).write(path)


def wanted(suite, names):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from wanted(test, names)
        elif not names or type(test).__name__ == "_FailedTest":  # a file that cannot be read hides its cases
            yield test
        elif any(f"_{name}_" in f"{test._testMethodName}_" for name in names):
            yield test


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    if options.full:
        os.environ["LONGSPAN_FULL"] = "1"
    if options.minutes:
        os.environ["LONGSPAN_SOAK_MINUTES"] = str(options.minutes)
    found = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent), pattern="cases_*.py")
    suite = unittest.TestSuite(wanted(found, options.cases))
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    import servers
    servers.stop_all()
    where = os.environ.get("GTEST_OUTPUT", "")
    if where.startswith("xml:"):
        write_xml(pathlib.Path(where[4:]) / f"{NAME}.xml", result.cases)
    for group, name, outcome, _, seconds in sorted(result.cases, key=lambda case: case[1]):
        print(f"{outcome:8}{seconds:6.1f} s  {name}")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
