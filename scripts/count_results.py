#!/usr/bin/env python3
"""Counts test cases: count_results.py CTEST_JUNIT.xml GTEST_XML_DIR

CTest knows programs, GoogleTest knows cases. A program that left GoogleTest XML counts as its cases, any other as
one case. A program that CTest calls failed although no case of it failed (it crashed, timed out, leaked) adds one
failure. Prints `passed failed skipped`, then one line for each failure."""
import pathlib
import sys
import xml.etree.ElementTree as ET


def gtest_cases(path):
    """-> (passed, failed names, skipped) of one GoogleTest XML file"""
    passed, failed, skipped = 0, [], 0
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None:
            failed.append(name)
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(junit, gtest_dir):
    passed, failed, skipped = 0, [], 0
    for test in ET.parse(junit).getroot().iter("testcase"):
        name, status = test.get("name"), test.get("status")
        xml = pathlib.Path(gtest_dir) / f"{name}.xml"
        program_failed = status == "fail"
        if xml.exists():
            case_passed, case_failed, case_skipped = gtest_cases(xml)
            passed += case_passed
            skipped += case_skipped
            failed += [f"{name}: {case}" for case in case_failed]
            if program_failed and not case_failed:
                failed.append(f"{name}: the program failed outside its cases")
        elif program_failed:
            failed.append(f"{name}: crashed, timed out or exited with an error")
        elif status == "run":
            passed += 1
        else:
            skipped += 1
    print(passed, len(failed), skipped)
    for name in failed:
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
