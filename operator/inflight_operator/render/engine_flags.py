"""The engine's flags for spec.engine.scheduling, spec.engine.kvCache, sleep and the storage of weights.

Only non-default values are written, so that a service without them keeps its command, and its pods, when an operator
upgrade adds a flag.
"""

from __future__ import annotations

from typing import Any

from pydantic.alias_generators import to_snake

from inflight_base.manifest.units import parse_duration, parse_quantity
from inflight_operator.api.base import SpecModel
from inflight_operator.api.engine.fields import Engine
from inflight_operator.api.pods.scheduling import ServiceClass
from inflight_operator.api.pods.template import KV_FOLDER
from inflight_operator.api.resolve import asks_peers
from inflight_operator.api.setting import settings_in
from inflight_operator.api.spec import SLO, InferenceServiceSpec
from inflight_settings.scheduling import ServiceClass as EngineServiceClass
from inflight_settings.setting import Setting, settings_of


def number(value: float) -> str:
    """Returns the number without a fraction if it has none: `60`, `0.5`."""
    return str(int(value)) if value.is_integer() else str(value)


def seconds(duration: str) -> str:
    """Returns a duration such as `1m30s` in seconds."""
    return number(parse_duration(duration))


_ALWAYS = "dtype max-num-seqs max-num-batched-tokens max-queued-requests queue-timeout request-timeout".split()
"""Flags that are written with their defaults too, in this order."""

_FIRST = (
    "max-model-len kv-cache-memory tensor-parallel-size quantization kv-cache-dtype gpu-memory-utilization kv-headroom "
    "scheduling-policy priority-aging shed-after preemption preemption-victim swap-space ttft-target no-prefix-caching "
    "no-serving-metrics"
).split()
"""Flags whose order is fixed: another order would replace running pods. Other flags follow."""


def constant_flags(engine: Engine) -> dict[str, str | None]:
    """Values of the flags that every engine gets."""
    values = _values(engine)
    return {flag: values[flag] for flag in _ALWAYS}


def engine_flags(spec: InferenceServiceSpec) -> list[str]:
    """Other arguments of `inflight-engine serve`; none if all values are defaults."""
    engine, default = spec.engine, Engine()
    given, defaults = (_values(each, each.kv_cache, each.scheduling) for each in (engine, default))
    if engine.scheduling.policy == "fcfs" and not _has_target(engine):
        # The engine takes fcfs unless it has a TTFT target, and with policy fcfs only classes bring one.
        given["scheduling-policy"] = None
    arguments = {
        flag: [f"--{flag}={value}" if value else f"--{flag}"]
        for flag, value in given.items()
        if value is not None and value != defaults[flag] and flag not in _ALWAYS
    }
    if spec.accelerator.count > 1:
        arguments["tensor-parallel-size"] = [f"--tensor-parallel-size={spec.accelerator.count}"]
    if disk := engine.kv_cache.disk:
        arguments["disk-space"] = [f"--disk-space={int(parse_quantity(disk.size))}", f"--disk-path={KV_FOLDER}"]
    if sleep := spec.scaling.sleep:
        arguments["sleep-after"] = [f"--sleep-after={seconds(sleep.after)}"]
    arguments["ttft-target"] = ttft_flags(spec)
    ordered = sorted(arguments, key=lambda flag: _FIRST.index(flag) if flag in _FIRST else len(_FIRST))
    return [
        *(argument for flag in ordered for argument in arguments[flag]),
        *(f"--service-class={class_text(each)}" for each in engine.scheduling.classes),
    ]


def ttft_target(spec: InferenceServiceSpec) -> str | None:
    """Returns the TTFT target in seconds by which engines order waiting requests of classes without their own; None: no
    ordering by target."""
    ordered = spec.engine.scheduling.policy in (None, "deadline")
    return seconds(spec.slo.ttft_p95) if ordered and spec.slo is not None else None


def has_ttft_target(spec: InferenceServiceSpec) -> bool:
    """Returns True if the service or a class has a target that engines order requests by."""
    return ttft_target(spec) is not None or _has_target(spec.engine)


def ttft_flags(spec: InferenceServiceSpec) -> list[str]:
    """Returns the flags for the parts of `spec.slo` that engines take."""
    target, slo = ttft_target(spec), spec.slo
    flags = [] if target is None else [f"--ttft-target={target}"]
    if slo is not None and parse_duration(slo.ttft_per_thousand_tokens) and (flags or _has_target(spec.engine)):
        flags.append(f"--ttft-per-1k-tokens={seconds(slo.ttft_per_thousand_tokens)}")
    return flags


def peers_flags(spec: InferenceServiceSpec) -> list[str]:
    """Returns the flag for when peers read nothing from an engine; none without peers."""
    if not asks_peers(spec):
        return []
    of_classes = [each.slo.tpot_p95 for each in spec.engine.scheduling.classes if each.slo.tpot_p95 is not None]
    target = min([(spec.slo or SLO()).tpot_p95, *of_classes], key=parse_duration)
    return [f"--peers-tpot={seconds(target)}"]


def _has_target(engine: Engine) -> bool:
    """Returns True if a class has its own target."""
    return any(each.slo.ttft_p95 is not None for each in engine.scheduling.classes)


def class_text(service_class: ServiceClass) -> str:
    """`NAME:weight=4,priority=1,ttft=0.5`, or `NAME` alone."""
    default = ServiceClass(name=service_class.name)
    given, defaults = (_values(each, each.slo) for each in (service_class, default))
    flags = [each.flag for each in settings_of(EngineServiceClass).values() if given[each.flag] != defaults[each.flag]]
    values = ",".join(f"{flag.replace('-', '_')}={given[flag]}" for flag in flags)
    return f"{service_class.name}:{values}" if values else service_class.name


def _values(*parts: SpecModel) -> dict[str, str | None]:
    """Values of the settings in parts of the spec, by flag. None: unset; empty: a switch that is not as by default."""
    return {each.flag: _value(each, getattr(part, name)) for part in parts for name, each in settings_in(type(part))}


def _value(setting: Setting, value: Any) -> str | None:
    if value is None:
        return None
    if setting.kind is bool:
        return None if value == setting.default else ""
    if setting.unit == "bytes":
        return str(int(parse_quantity(value)))
    if setting.unit == "seconds":
        return seconds(value)
    if setting.choices:
        return value if value in setting.choices else to_snake(value)
    return number(value) if isinstance(value, float) else str(value)
