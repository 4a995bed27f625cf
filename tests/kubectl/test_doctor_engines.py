"""Results of the doctor for engines of types vllm and custom."""

from __future__ import annotations

import pytest

from inflight_base.manifest.engines import EngineType
from inflight_kubectl.doctor.engines import check_engines, judged
from tests.kubectl.objects import condition, service

VLLM = EngineType("vllm", plugin=True)
CUSTOM = EngineType("custom", metrics={"vllm:num_requests_running": "llamacpp:requests_processing"})


def info(state: str, reason: str = "") -> str:
    return (
        f'# HELP x\ninflight_plugin_info{{reason="{reason}",state="{state}",version="0.2",vllm_version="0.32.0"}} 1.0\n'
    )


@pytest.mark.parametrize(
    ("engine", "page", "level", "found"),
    [
        (VLLM, info("active"), "ok", "chat-1: plugin 0.2 in vLLM 0.32.0 is active"),
        (VLLM, info("unsupported", "not tested"), "warn", "does nothing, limits stay: not tested"),
        (VLLM, "vllm:num_requests_running 1\n", "fail", "runs vLLM without Inflight's plugin"),
        (EngineType("vllm"), "vllm:num_requests_running 1\n", "ok", "has the metrics"),
        (CUSTOM, "llamacpp:requests_processing 1\n", "ok", "has the metrics"),
        (CUSTOM, "llamacpp:requests_processing_total 1\n", "warn", "has no llamacpp:requests_processing"),
    ],
)
def test_a_page_shows_the_state_of_its_engine(engine, page, level, found):
    result = judged("engines", "chat-1", engine, page, "kubectl logs")
    assert result.level == level
    assert found in result.found
    assert bool(result.remedy) == (level != "ok")


def test_an_operator_without_the_image_for_the_plugin_is_named_with_the_command_that_sets_it():
    told = condition("TuningActive", "False", "NoPluginImage", "vLLM runs without Inflight's plugin")

    class One:
        def services(self):
            found = service(conditions=[told])
            found.raw["spec"]["engine"] = {"type": "vllm"}
            return [found]

        def list(self, path, **query):
            names = {"app.kubernetes.io/instance": "mine"}
            return {"items": [{"metadata": {"namespace": "llm", "labels": names}}]}

    (result,) = check_engines(One())
    assert (result.level, result.found) == ("warn", told["message"])
    assert result.remedy.startswith("helm upgrade mine helm/inflight -n llm ")


def test_services_of_type_inflight_are_not_asked():
    class OnlyOurs:
        def services(self):
            return [type("Service", (), {"engine": EngineType()})]

    assert [*check_engines(OnlyOurs())] == []
