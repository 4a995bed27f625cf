"""Types of engines as all programs read them from an InferenceService."""

import pytest

from inflight_base.manifest.engines import EngineType, annotation_of, engine_type_of, engine_type_of_pod
from inflight_base.manifest.names import ENGINE_ANNOTATION
from inflight_operator.api.resolve import engine_type
from tests.operator.render.services import make


def of(**engine):
    """The facts, which the operator has the same from its own types."""
    read = engine_type_of({"spec": {"engine": engine}})
    assert engine_type(make(engine=engine).spec) == read
    return read


def test_a_service_that_names_no_type_has_inflights_engine_with_live_limits():
    assert of() == of(type="inflight") == EngineType()
    assert of().live_limits
    assert of().limits


def test_vllm_has_live_limits_with_the_plugin_only():
    assert of(type="vllm").live_limits
    assert not of(type="vllm", plugin=False).live_limits
    assert of(type="vllm", plugin=False).limits


def test_a_custom_engine_names_its_ports_and_paths_and_no_limits():
    custom = {"port": 8080, "metricsPort": 9000, "metricsPath": "/prometheus"}
    read = of(type="custom", image="x", custom=custom)
    assert (read.port, read.metrics_port, read.metrics_path) == (8080, 9000, "/prometheus")
    assert not read.limits
    assert not read.live_limits
    assert of(type="custom", image="x") == EngineType("custom")


def test_only_metrics_with_another_name_than_vllms_are_renamed():
    metrics = {"running": "llamacpp:requests_processing", "waiting": "vllm:num_requests_waiting"}
    read = of(type="custom", image="x", custom={"metrics": metrics})
    assert read.metrics == {"vllm:num_requests_running": "llamacpp:requests_processing"}


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"type": "vllm"},
        {"type": "vllm", "plugin": False},
        {"type": "custom", "image": "x"},
        {
            "type": "custom",
            "image": "x",
            "custom": {"port": 8080, "metricsPath": "/m", "metrics": {"running": "a", "ttft": "b:c"}},
        },
        {"type": "custom", "image": "x", "custom": {"metricsPort": 9000}},
    ],
    ids=str,
)
def test_a_pod_has_the_facts_of_the_type_that_it_was_made_with(engine):
    facts = of(**engine)
    annotation = annotation_of(facts)
    assert engine_type_of_pod({"annotations": {ENGINE_ANNOTATION: annotation}}) == facts
    assert bool(annotation) == (facts.name != "inflight")


@pytest.mark.parametrize("annotation", ["", "{", "7", '{"type": 7}', "null", "[" * 100_000], ids=lambda one: one[:9])
def test_a_pod_without_a_readable_annotation_has_inflights_engine(annotation):
    assert engine_type_of_pod({"annotations": {ENGINE_ANNOTATION: annotation}}) == EngineType()
    assert engine_type_of_pod({"annotations": None}) == engine_type_of_pod({}) == EngineType()


@pytest.mark.parametrize("path", ["@example.org/", ".example.org/metrics", "metrics"])
def test_the_annotation_of_a_pod_cannot_send_a_scrape_to_another_host(path):
    annotation = f'{{"type": "custom", "custom": {{"metricsPath": "{path}"}}}}'
    assert engine_type_of_pod({"annotations": {ENGINE_ANNOTATION: annotation}}).metrics_path == "/metrics"


def test_an_object_that_cannot_be_read_has_inflights_engine():
    for manifest in ({}, {"spec": 7}, {"spec": {"engine": {"type": 7}}}, {"spec": {"engine": {"type": "new"}}}):
        assert engine_type_of(manifest) == EngineType()
