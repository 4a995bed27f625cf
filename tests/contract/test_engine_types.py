"""The API server refuses fields that an engine type does not have, each by its name."""

import pytest

from inflight_operator.api.engine.rules import TYPES_OF_FIELDS, VLLM_FLAGS
from tests.contract.manifests import service_manifest

pytestmark = pytest.mark.contract

TYPES = {
    "inflight": {},
    "vllm": {"engine": {"type": "vllm"}},
    "custom": {"engine": {"type": "custom", "image": "example.com/server:1"}},
}
OTHER_VALUES = {
    "model.revision": "v2",
    "model.prefetch": {"nodeSelector": {"accelerator": "h200"}},
    "model.peers": False,
    "engine.plugin": False,
    "engine.custom": {"port": 8080},
    "engine.extraArgs": ["--block-size=32"],
    "engine.dtype": "bfloat16",
    "engine.quantization": "int8",
    "engine.maxModelLen": 4096,
    "engine.maxNumBatchedTokens": 4096,
    "engine.kvCache.memory": "1Gi",
    "engine.kvCache.memoryFraction": 0.8,
    "engine.kvCache.dtype": "fp8",
    "engine.kvCache.headroom": 0.1,
    "engine.kvCache.swap": "4Gi",
    "engine.kvCache.disk": {"size": "100Gi"},
    "engine.kvCache.prefixCaching": False,
    "engine.scheduling.shedAfter": "5s",
    "engine.scheduling.preemption": "recompute",
    "engine.scheduling.preemptionVictim": "longestFirst",
    "engine.toolCallParser": "hermes",
    "engine.reasoningParser": "qwen3",
    "engine.maxQueuedRequests": 10,
    "engine.queueTimeout": "5s",
    "engine.requestTimeout": "5m",
    "engine.servingMetrics": False,
    "engine.grpc": True,
    "engine.kvEvents": True,
    "engine.tracing.endpoint": "http://collector.observability.svc:4318",
    "engine.tracing.samplingRatio": 0.5,
    "engine.logs.format": "json",
    "engine.logs.accessLog": True,
    "scaling.sleep": {"after": "5m"},
}


def spec(kind, path="", value=None, **parts):
    """A spec of this type, with a value at a path."""
    engine = dict(TYPES[kind].get("engine", {}))
    wanted = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "engine": engine, **parts}
    if path in ("engine.quantization", "scaling.sleep"):
        wanted["accelerator"] = {"count": 0}
    if path == "engine.kvCache.disk" and kind == "inflight":
        engine["kvCache"] = {"swap": "4Gi"}
    *parents, last = path.split(".")
    part = wanted
    for name in parents:
        part = part.setdefault(name, {})
    if last:
        part[last] = value
    return wanted


def answer(api_server, content):
    return api_server.post(service_manifest("default", content), dry_run=True)


def test_every_field_that_not_all_types_have_is_tried():
    assert OTHER_VALUES.keys() == TYPES_OF_FIELDS.keys()


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_without_further_fields_is_accepted(api_server, kind):
    assert answer(api_server, spec(kind)).status_code == 201


@pytest.mark.parametrize("path", TYPES_OF_FIELDS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_field_is_accepted_by_the_types_that_have_it_and_refused_by_name_by_the_others(api_server, kind, path):
    answered = answer(api_server, spec(kind, path, OTHER_VALUES[path]))
    if kind in TYPES_OF_FIELDS[path]:
        assert answered.status_code == 201, answered.text
    else:
        assert answered.status_code == 422, answered.text
        assert f"{path} is for engine.type" in answered.json()["message"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("swap", [0, "0"])
def test_no_swap_is_accepted_as_a_number_and_as_a_quantity(api_server, kind, swap):
    assert answer(api_server, spec(kind, "engine.kvCache.swap", swap)).status_code == 201


BAD = {
    "an unknown type": (
        spec("inflight", "engine.type", "sglang"),
        'spec.engine.type: Unsupported value: "sglang": supported values: "inflight", "vllm", "custom"',
    ),
    "custom without an image": (spec("inflight", "engine.type", "custom"), "engine.type custom needs engine.image"),
    "a model of Inflight's image in a custom engine": (
        spec("custom", model={"source": "builtin://smollm2"}),
        "model.source builtin:// is a model in Inflight's own image: with engine.type custom use hf:// or pvc://",
    ),
    "an override for custom engines": (
        spec("custom", tuning={"override": {"maxNumSeqs": 8, "until": "2030-01-31T12:00:00Z"}}),
        "tuning.override needs limits that change while engines run: engine.type inflight, or vllm with engine.plugin",
    ),
    "an override for vLLM without the plugin": (
        spec("vllm", "engine.plugin", False, tuning={"override": {"maxNumSeqs": 8, "until": "2030-01-31T12:00:00Z"}}),
        "tuning.override needs limits that change while engines run",
    ),
    "a policy that vLLM lacks": (
        spec("vllm", "engine.scheduling.policy", "sjf"),
        "engine.scheduling.policy must be fcfs, priority or deadline with engine.type vllm",
    ),
    "a policy that no custom engine is told": (
        spec("custom", "engine.scheduling.policy", "priority"),
        "engine.scheduling.policy must be fcfs or deadline with engine.type custom",
    ),
    "a bound of a class that vLLM lacks": (
        spec("vllm", "engine.scheduling.classes", [{"name": "chat", "shedAfter": "2s"}]),
        "engine.scheduling.classes: maxQueuedRequests, shedAfter and requestTimeout are for engine.type inflight only",
    ),
    "a parser that Inflight's engine lacks": (
        spec("inflight", "engine.toolCallParser", "step3"),
        "engine.toolCallParser must be auto, none, ",
    ),
    "one port for two things": (
        spec("custom", "engine.custom", {"port": 9000, "metricsPort": 9000}),
        "engine.custom.metricsPort is for a page on another port than engine.custom.port",
    ),
    "a path without a slash": (
        spec("custom", "engine.custom", {"readyPath": "health"}),
        "engine.custom.readyPath must be a path, such as /health",
    ),
    "a metric with labels": (
        spec("custom", "engine.custom", {"metrics": {"running": 'requests{state="running"}'}}),
        "engine.custom.metrics.running must be the name of a metric, such as vllm:num_requests_running",
    ),
    **{
        f"the field of --{flag} as an argument of vLLM": (
            spec("vllm", "engine.extraArgs", [f"--{flag.replace('-', '_')}=1"]),
            "engine.extraArgs cannot repeat a flag that the operator sets",
        )
        for flag in VLLM_FLAGS
    },
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_combination_is_refused_with_its_sentence(api_server, case):
    content, sentence = BAD[case]
    answered = answer(api_server, content)
    assert answered.status_code == 422, answered.text
    assert sentence in answered.json()["message"]


@pytest.mark.parametrize("flag", ["--enable-sleep-mode", "--block-size=32"])
def test_further_flags_of_vllm_are_accepted(api_server, flag):
    assert answer(api_server, spec("vllm", "engine.extraArgs", [flag])).status_code == 201


def test_classes_weights_and_targets_are_for_all_types_as_the_gateway_uses_them(api_server):
    classes = [{"name": "chat", "weight": 4, "priority": -1, "slo": {"ttftP95": "500ms"}}]
    for kind in TYPES:
        assert answer(api_server, spec(kind, "engine.scheduling.classes", classes)).status_code == 201
