"""Every example is a complete InferenceService and stays small."""

from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
EXAMPLES = sorted((PROJECT / "examples").glob("*.yaml"))


def test_there_are_examples():
    assert {path.name for path in EXAMPLES} >= {"chat.yaml", "classes.yaml", "gpu.yaml", "pvc.yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_spec_has_at_most_four_lines_beside_the_list_of_classes(path):
    lines = path.read_text().splitlines()
    spec = lines[lines.index("spec:") + 1 :]
    classes = spec.index("  engine:") if "  engine:" in spec else len(spec)
    assert 1 <= len(spec[:classes]) <= 4
    assert len(spec[classes:]) <= 5


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_operator_reads_it(path):
    from inflight_operator.api import InferenceService

    body = yaml.safe_load(path.read_text())
    body["metadata"] |= {"namespace": "default", "uid": "1"}
    assert InferenceService.from_dict(body).spec.scaling.max_replicas >= 2
