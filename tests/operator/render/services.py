"""Services the render tests share."""

from inflight_operator.api.types import InferenceService
from inflight_operator.render.plan import ChildPlan, Settings
from inflight_operator.render.service_children import render
from inflight_settings.limits import Limits, LimitsInForce

SETTINGS = Settings(engine_image="example.com/engine:1", operator_namespace="inflight-system")
PLAN = ChildPlan(replicas=2, limits=LimitsInForce(Limits(64, 1024), 7), admin_token="secret", spec_digest="spec")
CPU = {"accelerator": {"count": 0}}

EVERYTHING = {
    "model": {"source": "hf://Qwen/Qwen3-8B", "revision": "v1", "servedName": "qwen", "storage": "40Gi"},
    "engine": {
        "dtype": "bfloat16",
        "maxModelLen": 4096,
        "maxNumSeqs": 64,
        "maxNumBatchedTokens": 2048,
        "quantization": "int8",
        "kvCache": {
            "memory": "1.5Gi",
            "memoryFraction": 0.8,
            "dtype": "fp8",
            "headroom": 0.1,
            "swap": "2Gi",
            "disk": {"size": "20Gi"},
            "prefixCaching": False,
        },
        "scheduling": {
            "policy": "deadline",
            "priorityAging": "1m0.5s",
            "shedAfter": "20s",
            "preemption": "swap",
            "preemptionVictim": "mostPreemptedLast",
            "classes": [
                {
                    "name": "interactive",
                    "weight": 4,
                    "priority": -1,
                    "slo": {"ttftP95": "500ms", "tpotP95": "50ms"},
                    "maxQueuedRequests": 8,
                    "shedAfter": "4s",
                    "requestTimeout": "20m",
                },
                {"name": "batch", "weight": 0.5},
                {"name": "rest"},
            ],
        },
        "maxQueuedRequests": 10,
        "queueTimeout": "500ms",
        "requestTimeout": "1m30s",
        "toolCallParser": "qwen3_coder",
        "reasoningParser": "qwen3",
        "servingMetrics": False,
        "grpc": True,
        "kvEvents": True,
        "tracing": {"endpoint": "http://collector.observability.svc:4318", "samplingRatio": 0.1},
        "logs": {"format": "json", "accessLog": True},
        "extraArgs": ["--block-size=32"],
    },
    "slo": {"ttftP95": "1500ms", "ttftPerThousandTokens": "60ms"},
    "rollout": {"drainTimeout": "30s", "startupTimeout": "1h"},
    "accelerator": {"count": 2},
}
"""A spec in which every field that becomes a flag differs from its default. No API server would take all of it at once:
some fields are for CPU, others for accelerators."""


def make(name="chat", **spec):
    return InferenceService.from_dict(
        {
            "metadata": {"name": name, "namespace": "team", "uid": "u-1"},
            "spec": {"model": {"source": "builtin://smollm2"}, **spec},
        }
    )


def child(kind, service, plan=PLAN, settings=SETTINGS):
    (found,) = (child for child in render(service, plan, settings) if child["kind"] == kind)
    return found


def pod(service, settings=SETTINGS):
    return child("Deployment", service, settings=settings)["spec"]["template"]


def engine(service, settings=SETTINGS):
    (container,) = pod(service, settings)["spec"]["containers"]
    return container
