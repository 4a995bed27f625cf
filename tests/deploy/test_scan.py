"""checkov finds nothing in what the chart and the operator render, and every exception is needed and has its reason."""

import copy

import pytest

from deploy.scan import ENGINE_EXCEPTIONS, NotInstalledError, installations, main, scan

SKIP = "checkov.io/skip"


def exceptions(objects):
    """Check to reason, over all annotations."""
    found = {}
    for one in objects:
        for key, value in one["metadata"].get("annotations", {}).items():
            if key.startswith(SKIP):
                check, _, reason = value.partition("=")
                found[check] = reason
    return found


def bare(objects):
    """The objects without their exceptions."""
    plain = copy.deepcopy(objects)
    for one in plain:
        annotations = one["metadata"].get("annotations", {})
        for key in [key for key in annotations if key.startswith(SKIP)]:
            del annotations[key]
    return plain


@pytest.fixture(scope="module")
def parts():
    return installations()


@pytest.mark.slow
def test_no_check_fails_and_no_exception_is_needless(parts):
    plain = {f"bare-{name}": bare(objects) for name, objects in parts.items()}
    try:
        report = scan({**parts, **plain})
    except NotInstalledError as error:
        pytest.skip(f"checkov cannot be installed here: {error}")
    assert [str(one) for one in report.failed if not one.file.startswith("bare-")] == []
    assert report.passed > 500
    for name, objects in parts.items():
        needed = {one.check for one in report.failed if one.file == f"bare-{name}.yaml"}
        assert needed == set(exceptions(objects)), name


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


def test_failures_are_listed_and_end_the_command_with_1(monkeypatch, capsys):
    from deploy import scan as module

    finding = module.Finding("CKV_K8S_16", "Container should not be privileged", "Pod.a.b", "engines.yaml")
    monkeypatch.setattr(module, "installations", dict)
    monkeypatch.setattr(module, "scan", lambda parts: module.Report(7, 2, (finding,)))
    assert main([]) == 1
    assert capsys.readouterr().out == (
        "engines.yaml: Pod.a.b: CKV_K8S_16 Container should not be privileged\n"
        "7 checks passed, 1 failed, 2 skipped with a reason\n"
    )
    monkeypatch.setattr(module, "scan", lambda parts: module.Report(7, 2, ()))
    assert main([]) == 0
