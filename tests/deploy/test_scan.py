"""Installations and exceptions of the scan, and its report on checkov's findings. `make scan` runs checkov."""

import subprocess

import pytest

from deploy import scan as module
from deploy.scan import ENGINE_EXCEPTIONS, Finding, Report, bare, exceptions, installations, main

POD = {"kind": "Pod", "metadata": {"name": "a", "annotations": {"checkov.io/skip1": "CKV_1=A reason.", "x": "y"}}}


@pytest.fixture(scope="module")
def parts():
    return installations()


def test_every_exception_has_a_reason(parts):
    for objects in parts.values():
        for check, reason in exceptions(objects).items():
            assert len(reason.split()) > 5, check
            assert reason.endswith("."), check


def test_pinned_images_need_no_exception(parts):
    assert "CKV_K8S_43" in exceptions(parts["default-values"])
    assert "CKV_K8S_43" not in exceptions(parts["production-values"])


def test_engines_are_scanned_with_the_exceptions_that_are_argued_for_them(parts):
    assert exceptions(parts["engines"]) == ENGINE_EXCEPTIONS
    assert {one["kind"] for one in parts["engines"]} >= {
        "Deployment",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
    }


def test_without_exceptions_all_else_stays():
    assert exceptions([POD]) == {"CKV_1": "A reason."}
    assert bare([POD]) == [{"kind": "Pod", "metadata": {"name": "a", "annotations": {"x": "y"}}}]


def finding(check, file):
    return Finding(check, "Container should not be privileged", "Pod.a", file)


def found(monkeypatch, *failed, passed=7):
    """The exit code where checkov reports this of the installation `team`."""
    monkeypatch.setattr(module, "installations", lambda: {"team": [POD]})
    monkeypatch.setattr(module, "scan", lambda parts: Report(passed, 2, failed))
    return main([])


def test_an_exception_that_is_needed_is_no_fault(monkeypatch, capsys):
    assert found(monkeypatch, finding("CKV_1", "bare-team.yaml")) == 0
    assert capsys.readouterr().out == "7 checks passed, 2 skipped with a reason, 0 faults\n"


def test_faults_are_listed_and_end_the_command_with_1(monkeypatch, capsys):
    assert found(monkeypatch, finding("CKV_2", "team.yaml"), finding("CKV_2", "bare-team.yaml")) == 1
    assert capsys.readouterr().out == (
        "team.yaml: Pod.a: CKV_2 Container should not be privileged\n"
        "team.yaml: the exception CKV_1 is needless\n"
        "7 checks passed, 2 skipped with a reason, 2 faults\n"
    )


def test_a_scan_that_checked_nothing_is_a_failure(monkeypatch):
    assert found(monkeypatch, finding("CKV_1", "bare-team.yaml"), passed=0) == 1


NO_NETWORK = """\
error: Request failed after 3 retries in 7.6s
  cause: error sending request for url (https://index.example/simple/checkov/)
  cause: dns error"""


@pytest.mark.parametrize(("said", "code"), [(NO_NETWORK, 0), ("error: there is no version of checkov==3.3.30", 1)])
def test_where_checkov_cannot_be_installed_only_a_missing_network_is_no_failure(monkeypatch, capsys, said, code):
    monkeypatch.setattr(module, "installations", lambda: {"team": [POD]})
    monkeypatch.setattr(module, "checkov", lambda *arguments: subprocess.CompletedProcess(arguments, 2, "", said))
    assert main([]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert ("NOTHING WAS SCANNED" in shown.out) == (code == 0)
