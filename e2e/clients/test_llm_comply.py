"""All tests that llm-comply has of three APIs, with its specification of each."""

from importlib.resources import files

import pytest
from llm_comply import ComplianceConfig, SpecLoader, TestRunner, TestStatus
from llm_comply.tests import get_tests

TestRunner.__test__ = False
SPECS = {
    "openai-chat": "openai_chat.json",
    "open-responses": "openresponses.json",
    "anthropic": "anthropic.json",
}
CASES = [(form, case) for form in SPECS for case in get_tests(form)]


@pytest.mark.parametrize(("form", "case"), CASES, ids=[f"{form}:{case.id}" for form, case in CASES])
def test_complies(form, case, url, model):
    config = ComplianceConfig(base_url=f"{url}/v1", api_key="none", model=model, timeout=300)
    spec = str(files("llm_comply").joinpath("specs", SPECS[form]))
    result = TestRunner(config, [], SpecLoader(spec)).run_one(case)
    if result.status is TestStatus.SKIPPED:
        pytest.skip(result.errors[0])
    assert result.status is TestStatus.PASSED, result.errors
