"""The table of metrics of other servers in the guide: each name is read as the field that it stands for."""

import re
from pathlib import Path

import pytest

from inflight_base.manifest.engines import METRICS, engine_type_of
from inflight_base.page.names import renamed
from inflight_operator.api.types import InferenceService
from inflight_operator.observe.metrics import parse_metrics

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "bring-your-vllm.md"
FIELDS = {
    "running": lambda sample: sample.running,
    "waiting": lambda sample: sample.waiting,
    "kvUtilization": lambda sample: sample.kv_usage,
    "promptTokens": lambda sample: sample.prompt_tokens,
    "generationTokens": lambda sample: sample.generation_tokens,
    "ttft": lambda sample: sample.ttft.count,
    "tpot": lambda sample: sample.tpot.count,
    "itl": lambda sample: sample.itl.count,
}
"""Reading of a sample for each field of `spec.engine.custom.metrics`."""


def table():
    """Names by field, for each server."""
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
        for line in GUIDE.read_text().splitlines()
        if re.match(r"\| (field of `custom\.metrics`|`\w+`) \|.*\|.*\|", line)
    ]
    head = next(row for row in rows if "custom.metrics" in row[0])
    named = [row for row in rows if row[0] in METRICS and len(row) == len(head)]
    return {head[column]: {row[0]: row[column] for row in named if row[column]} for column in range(1, len(head))}


SERVERS = table()


def page(names):
    """A page with a value of its own for each name, histograms with that many observations."""
    lines = []
    for number, (field, name) in enumerate(names.items(), start=1):
        if field in ("ttft", "tpot", "itl"):
            lines += [f'{name}_bucket{{le="1.0"}} {number}', f'{name}_bucket{{le="+Inf"}} {number}']
            lines += [f"{name}_sum 0.5", f"{name}_count {number}"]
        else:
            lines.append(f"{name} {number / 10 if field == 'kvUtilization' else number}")
    return "\n".join(lines) + "\n"


def test_every_field_has_a_reading_and_three_servers_are_named():
    assert FIELDS.keys() == METRICS.keys()
    assert len(SERVERS) == 3
    assert all({"running", "waiting"} <= names.keys() for names in SERVERS.values())


@pytest.mark.parametrize("server", SERVERS)
def test_the_names_of_a_server_are_read_as_the_fields_that_they_stand_for(server):
    names = SERVERS[server]
    engine = {"type": "custom", "image": "server:1", "custom": {"metrics": names}}
    body = {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "team", "uid": "uid"},
        "spec": {"model": {"source": "pvc://models/llama"}, "engine": engine},
    }
    _, unread = InferenceService.read(body)
    assert not unread
    sample = parse_metrics(renamed(page(names).encode(), engine_type_of(body).metrics).decode(), 1.0)
    for number, field in enumerate(names, start=1):
        assert FIELDS[field](sample) == (number / 10 if field == "kvUtilization" else number), field
