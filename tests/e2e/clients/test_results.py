"""Suites and their results: reports of pytest, exceptions, pins."""

import os
import re
import select

import pytest

from e2e.clients.__main__ import faults, main, parser, rows
from e2e.clients.results import read
from e2e.clients.run import GRPC, SERVE, run
from e2e.clients.suites import PYTEST, SUITES, WAYS, Suite

REPORT = """<testsuites><testsuite>
<testcase classname="test_a" name="test_good"/>
<testcase classname="test_a" name="test_skipped"><skipped message="no"/></testcase>
<testcase classname="test_a" name="test_image[jpeg]"><failure message="400">...</failure></testcase>
<testcase classname="test_a" name="test_bad"><failure message="expected 1&#10;got 2">...</failure></testcase>
<testcase classname="test_b" name="test_broken"><error message="no fixture">...</error></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path):
    def write(text=REPORT):
        (tmp_path / "report.xml").write_text(text)
        return tmp_path / "report.xml"

    return write


def test_tests_that_fail_as_known_are_told_from_others(report):
    results = read(report(), Suite("a", 1, ("a==1",), known={"*image*": "text only"}), "direct")
    assert results.known == {"test_a.test_image[jpeg]": "text only"}
    assert results.faults() == ["test_a.test_bad: expected 1", "test_b.test_broken: no fixture"]
    assert str(results) == "1 passed, 2 failed, 1 known, 1 skipped"


def test_an_exception_that_passes_is_a_fault(report):
    results = read(report(), Suite("a", 1, ("a==1",), known={"*": "all"}), "direct")
    assert results.faults() == ["test_a.test_good passed: its exception is needless"]


def test_a_suite_of_which_fewer_tests_ran_than_are_known_is_a_fault(report):
    empty = read(report("<testsuites/>"), Suite("a", 1, ("a==1",)), "direct")
    assert empty.faults() == ["0 tests ran, fewer than 1"]
    # Tests that fail ran, and those that were skipped did not.
    known = {"*": "all that fail"}
    assert all("ran" not in each for each in read(report(), Suite("a", 4, ("a==1",), known=known), "direct").faults())
    assert "4 tests ran, fewer than 5" in read(report(), Suite("a", 5, ("a==1",), known=known), "direct").faults()


@pytest.mark.parametrize("text", ["", "<testsuites>"])
def test_half_a_report_is_none(report, text):
    with pytest.raises(ValueError, match="a left no report"):
        read(report(text), Suite("a", 1, ("a==1",)), "direct")


def test_the_table_has_a_column_for_each_way_and_faults_name_suite_and_way(report):
    suite = Suite("a", 1, ("a[extra]==1",))
    found = {suite: {"direct": read(report("<testsuites/>"), suite, "direct"), "gateway": "no report"}}
    assert rows(found) == [["suite", "client", "direct", "gateway"], ["a", "a[extra] 1", "0 passed", "no report"]]
    assert faults(found) == ["a, direct: 0 tests ran, fewer than 1", "a, gateway: no report"]


def test_only_takes_names_of_suites(capsys):
    two = ["openai", "pydantic-ai"]
    assert [each.name for each in parser().parse_args(["--only", ",".join(two)]).only] == two
    with pytest.raises(SystemExit):
        parser().parse_args(["--only", "another"])
    assert "there is no suite 'another'" in capsys.readouterr().err


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_is_pinned_with_all_that_it_requires_and_without_torch(suite):
    pins = suite.pins.read_text().split()
    wanted = {re.sub(r"\[.*?\]", "", each) for each in (*suite.requirements, PYTEST)}
    assert wanted <= {*pins}
    assert all("==" in pin for pin in pins)
    assert not any(pin.startswith("torch==") for pin in pins)
    assert suite.tests.exists()


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Runs a shell script in place of a suite's pytest."""
    monkeypatch.setattr("e2e.clients.run.write_tokenizer", lambda folder: None)
    urls = dict.fromkeys((*WAYS, GRPC, SERVE), "")

    def ran(script):
        monkeypatch.setattr("e2e.clients.run.command", lambda *_: ["sh", "-c", script])
        return run(Suite("a", 1, ("a==1",)), "direct", urls, tmp_path)

    return ran


def test_a_suite_that_takes_too_long_ends_with_all_that_it_started(ran, monkeypatch, tmp_path):
    monkeypatch.setattr("e2e.clients.run.SUITE_SECONDS", 1)
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ValueError, match="a took longer than 1 s: the last line"):
            ran("sleep 600 >held & echo the last line; wait")
        readable, _, _ = select.select([held], [], [], 30)
        assert readable, "what the suite started still runs"
    finally:
        os.close(held)


def test_a_suite_that_ended_early_is_a_fault_though_its_report_is_good(ran):
    good = 'echo \'<testsuites><testcase classname="a" name="b"/></testsuites>\' >a.xml'
    assert ran(good).faults() == []
    with pytest.raises(ValueError, match="a ended early, with exit code 3: the last line"):
        ran(f"{good}; echo the last line; exit 3")


def test_a_suite_whose_tests_are_all_skipped_is_a_fault(report):
    text = '<testsuites><testcase classname="a" name="b"><skipped message="no"/></testcase></testsuites>'
    assert read(report(text), Suite("a", 1, ("a==1",)), "direct").faults() == ["0 tests ran, fewer than 1"]


def test_logs_of_another_run_are_not_overwritten(tmp_path, monkeypatch, capsys):
    (tmp_path / "generation").mkdir()
    monkeypatch.setattr("e2e.clients.__main__.exit_on_signals", lambda: None)
    monkeypatch.setattr("sys.argv", ["clients", "--logs", str(tmp_path)])
    assert main() == 1
    assert "File exists" in capsys.readouterr().err
