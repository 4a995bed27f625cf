"""The engine's flags for spec.engine.scheduling, spec.engine.kvCache and the storage of weights.

Only non-default values are written, so that a service without them keeps its command, and its pods, when an operator
upgrade adds a flag.
"""

from __future__ import annotations

from pydantic.alias_generators import to_snake

from inflight_base.manifest.units import parse_duration, parse_quantity
from inflight_operator.api.engine import Engine
from inflight_operator.api.scheduling import ServiceClass
from inflight_operator.api.spec import InferenceServiceSpec


def number(value: float) -> str:
    """Returns the number without a fraction if it has none: `60`, `0.5`."""
    return str(int(value)) if value.is_integer() else str(value)


def seconds(duration: str) -> str:
    """Returns a duration such as `1m30s` in seconds."""
    return number(parse_duration(duration))


def engine_flags(spec: InferenceServiceSpec) -> list[str]:
    """Arguments of `inflight-engine serve`, in a fixed order; none if all values are defaults."""
    engine = spec.engine
    values, defaults = _values(engine), _values(Engine())
    return [
        *(f"--{flag}={value}" for flag, value in values.items() if value != defaults[flag]),
        *ttft_flags(spec),
        *([] if engine.kv_cache.prefix_caching else ["--no-prefix-caching"]),
        *([] if engine.serving_metrics else ["--no-serving-metrics"]),
        *(f"--service-class={_class(each)}" for each in engine.scheduling.classes),
    ]


def ttft_target(spec: InferenceServiceSpec) -> str | None:
    """Returns the TTFT target in seconds by which engines order waiting requests of classes without their own; None: no
    ordering by target."""
    ordered = spec.engine.scheduling.policy in (None, "deadline")
    return seconds(spec.slo.ttft_p95) if ordered and spec.slo is not None else None


def ttft_flags(spec: InferenceServiceSpec) -> list[str]:
    """Returns the flags for the parts of `spec.slo` that engines take."""
    target, slo = ttft_target(spec), spec.slo
    flags = [] if target is None else [f"--ttft-target={target}"]
    if slo is not None and parse_duration(slo.ttft_per_thousand_tokens) and (flags or _has_target(spec.engine)):
        flags.append(f"--ttft-per-1k-tokens={seconds(slo.ttft_per_thousand_tokens)}")
    return flags


def _has_target(engine: Engine) -> bool:
    """Returns True if a class has its own target."""
    return any(each.slo.ttft_p95 is not None for each in engine.scheduling.classes)


def _values(engine: Engine) -> dict[str, str | None]:
    cache, scheduling = engine.kv_cache, engine.scheduling
    return {
        "quantization": engine.quantization,
        "kv-cache-dtype": cache.dtype,
        "gpu-memory-utilization": number(cache.memory_fraction),
        "kv-headroom": number(cache.headroom),
        "scheduling-policy": _policy(engine),
        "priority-aging": seconds(scheduling.priority_aging),
        "shed-after": None if scheduling.shed_after is None else seconds(scheduling.shed_after),
        "preemption": scheduling.preemption,
        "preemption-victim": to_snake(scheduling.preemption_victim),
        "swap-space": str(int(parse_quantity(cache.swap))),
    }


def _policy(engine: Engine) -> str | None:
    """Returns the policy flag; None if the engine's own choice is the same. It takes fcfs unless it has a TTFT target,
    and with policy fcfs only classes bring one."""
    policy = engine.scheduling.policy
    return None if policy == "fcfs" and not _has_target(engine) else policy


def _class(service_class: ServiceClass) -> str:
    """`NAME:weight=4,priority=1,ttft=0.5,tpot=0.05,max_queued=100,shed_after=5,request_timeout=600`, or `NAME`
    alone."""
    values, defaults = _class_values(service_class), _class_values(ServiceClass(name=service_class.name))
    given = ",".join(f"{key}={value}" for key, value in values.items() if value != defaults[key])
    return f"{service_class.name}:{given}" if given else service_class.name


def _class_values(service_class: ServiceClass) -> dict[str, str | None]:
    slo, most = service_class.slo, service_class.max_queued_requests
    return {
        "weight": number(service_class.weight),
        "priority": str(service_class.priority),
        "ttft": None if slo.ttft_p95 is None else seconds(slo.ttft_p95),
        "tpot": None if slo.tpot_p95 is None else seconds(slo.tpot_p95),
        "max_queued": None if most is None else str(most),
        "shed_after": None if service_class.shed_after is None else seconds(service_class.shed_after),
        "request_timeout": None if service_class.request_timeout is None else seconds(service_class.request_timeout),
    }
