"""Results of a suite: pytest's report, without the tests that are known not to pass."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from e2e.clients.suites import Suite


@dataclass(frozen=True, slots=True)
class Results:
    """Tests of a suite on one way.

    Attributes:
        least: number of those that must have run.
        passed: number of those that passed.
        skipped: number of those that did not run.
        known: id -> reason, of those that failed as known.
        failed: id -> message, of the others.
        needless: ids of those that passed although they are known not to.
    """

    least: int
    passed: int
    skipped: int
    known: dict[str, str]
    failed: dict[str, str]
    needless: tuple[str, ...]

    def faults(self) -> list[str]:
        """A line for each test that failed, each exception that nothing needs, and a suite of which tests are gone."""
        ran = self.passed + len(self.known) + len(self.failed)
        return [
            *(f"{test}: {why.splitlines()[0]}" for test, why in self.failed.items()),
            *(f"{test} passed: its exception is needless" for test in self.needless),
            *([] if ran >= self.least else [f"{ran} tests ran, fewer than {self.least}"]),
        ]

    def __str__(self) -> str:
        counts = ((len(self.failed), "failed"), (len(self.known), "known"), (self.skipped, "skipped"))
        return ", ".join([f"{self.passed} passed", *(f"{number} {what}" for number, what in counts if number)])


def read(report: Path, suite: Suite, way: str) -> Results:
    """Reads a report in JUnit's format. Args: way: `direct` or `gateway`.

    Raises:
        ValueError: there is no whole report.
    """
    try:
        cases = [*ET.parse(report).iter("testcase")]
    except (OSError, ET.ParseError) as error:
        raise ValueError(f"{suite.name} left no report: {error}") from None
    passed, skipped = list[str](), 0
    known, failed = dict[str, str](), dict[str, str]()
    for case in cases:
        test = f"{case.get('classname')}.{case.get('name')}"
        fault = next((each for each in case if each.tag in ("failure", "error")), None)
        if fault is None:
            if any(each.tag == "skipped" for each in case):
                skipped += 1
            else:
                passed.append(test)
        elif (reason := suite.reason(test, way)) is not None:
            known[test] = reason
        else:
            failed[test] = fault.get("message") or fault.text or "no message"
    needless = tuple(test for test in passed if suite.reason(test, way) is not None)
    return Results(suite.count, len(passed), skipped, known, failed, needless)
