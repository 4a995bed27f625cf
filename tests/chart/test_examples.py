"""Every example is complete, small, and read by the operator; tests/contract applies each on a real API server."""

from pathlib import Path

import pytest
import yaml

from inflight_operator.api.types import InferenceService

PROJECT = Path(__file__).parents[2]
EXAMPLES = sorted((PROJECT / "examples").glob("*.yaml"))
SPEC_LINES = 16


def first_of(path):
    return next(yaml.safe_load_all(path.read_text()))


def test_there_are_examples():
    assert {path.name for path in EXAMPLES} >= {"chat.yaml", "classes.yaml", "gpu.yaml", "pvc.yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_says_what_it_is_for_and_stays_small(path):
    lines = path.read_text().partition("\n---\n")[0].splitlines()
    assert lines[0].startswith("# ")
    assert 1 <= len(lines[lines.index("spec:") + 1 :]) <= SPEC_LINES


@pytest.mark.parametrize("name", ["chat", "gpu", "pvc"])
def test_the_first_examples_have_at_most_four_lines(name):
    lines = (PROJECT / "examples" / f"{name}.yaml").read_text().splitlines()
    assert len(lines[lines.index("spec:") + 1 :]) <= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_operator_reads_it(path):
    body = first_of(path)
    body["metadata"] |= {"namespace": "default", "uid": "1"}
    assert InferenceService.from_dict(body).spec.scaling.max_replicas >= 2


def test_names_differ_so_that_all_can_be_applied_together():
    names = [first_of(path)["metadata"]["name"] for path in EXAMPLES]
    assert len(set(names)) == len(names)
