"""Every example is a complete InferenceService and stays small."""

from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
EXAMPLES = sorted((PROJECT / "examples").glob("*.yaml"))


def test_there_are_examples():
    assert {path.name for path in EXAMPLES} >= {"chat.yaml", "gpu.yaml", "pvc.yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_spec_has_at_most_four_lines(path):
    lines = path.read_text().splitlines()
    assert 1 <= len(lines) - lines.index("spec:") - 1 <= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_operator_reads_it(path):
    from inflight_operator.api import InferenceService

    body = yaml.safe_load(path.read_text())
    body["metadata"] |= {"namespace": "default", "uid": "1"}
    assert InferenceService.from_dict(body).spec.scaling.max_replicas >= 2
