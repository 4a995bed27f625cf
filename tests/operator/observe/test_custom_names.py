"""The table of metrics of other servers in the guide: each name is read as the field that it stands for, and those of
llama.cpp's server are on the page that it really has."""

import re
from pathlib import Path

import pytest
import yaml

from inflight_base.manifest.engines import METRICS, engine_type_of
from inflight_base.page.names import renamed
from inflight_gateway.scrape.page import read_page
from inflight_operator.api.types import InferenceService
from inflight_operator.observe.metrics import parse_metrics

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "bring-your-vllm.md"
EXAMPLE = ROOT / "examples" / "custom.yaml"
LLAMA_CPP = Path(__file__).with_name("llama-cpp-python-0.3.36-metrics.txt")
"""Page of llama.cpp's server 0.5.0-dev, commit 0c1e570, built from the sources of llama-cpp-python 0.3.36 and started
with --parallel 2 --metrics: after one request of 5 tokens, with two requests running and three waiting."""
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


@pytest.mark.parametrize("metrics", ["guide", "example"])
def test_the_page_of_llama_cpps_server_is_read_by_the_names_of_the_guide_and_of_the_example(metrics):
    body = yaml.safe_load(EXAMPLE.read_text())
    if metrics == "guide":
        body["spec"]["engine"]["custom"]["metrics"] = next(SERVERS[one] for one in SERVERS if "llama.cpp" in one)
    text = renamed(LLAMA_CPP.read_bytes(), engine_type_of(body).metrics).decode()
    sample, seen = parse_metrics(text, 1.0), read_page(text.encode(), 1.0, max_num_seqs=2)
    assert (sample.running, sample.waiting, sample.prompt_tokens, sample.generation_tokens) == (2, 3, 40, 5)
    assert (sample.kv_usage, sample.ttft.count, sample.limits) == (None, 0, None)
    assert (seen.running, seen.waiting, seen.limits.max_num_seqs) == (2, 3, 2)


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
