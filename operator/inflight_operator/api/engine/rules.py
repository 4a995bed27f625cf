"""CEL rules of engine types: fields that a type does not have must keep their defaults.

Defaults are stored with each object, so a rule can only refuse values that differ from the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from inflight_base.manifest.engines import CUSTOM, INFLIGHT, VLLM
from inflight_operator.api.base import rule
from inflight_settings.server import ReasoningParser, ToolCallParser

_OWN = (INFLIGHT,)
_STARTED = (INFLIGHT, VLLM)

TYPES_OF_FIELDS: dict[str, tuple[str, ...]] = {
    "model.revision": _STARTED,
    "model.prefetch": _OWN,
    "model.peers": _OWN,
    "engine.plugin": (VLLM,),
    "engine.custom": (CUSTOM,),
    "engine.extraArgs": _STARTED,
    "engine.dtype": _STARTED,
    "engine.quantization": _OWN,
    "engine.maxModelLen": _STARTED,
    "engine.maxNumBatchedTokens": _STARTED,
    "engine.kvCache.memory": _STARTED,
    "engine.kvCache.memoryFraction": _STARTED,
    "engine.kvCache.dtype": _STARTED,
    "engine.kvCache.headroom": _OWN,
    "engine.kvCache.swap": _OWN,
    "engine.kvCache.disk": _OWN,
    "engine.kvCache.prefixCaching": _STARTED,
    "engine.scheduling.shedAfter": _OWN,
    "engine.scheduling.preemption": _OWN,
    "engine.scheduling.preemptionVictim": _OWN,
    "engine.toolCallParser": _STARTED,
    "engine.reasoningParser": _STARTED,
    "engine.maxQueuedRequests": _OWN,
    "engine.queueTimeout": _OWN,
    "engine.requestTimeout": _OWN,
    "engine.servingMetrics": _OWN,
    "engine.grpc": _OWN,
    "engine.kvEvents": _STARTED,
    "engine.tracing.endpoint": _STARTED,
    "engine.tracing.samplingRatio": _STARTED,
    "engine.logs.format": _OWN,
    "engine.logs.accessLog": _OWN,
    "scaling.sleep": _OWN,
}
"""Fields of the spec that not all engine types have, with the types that have them."""

_OF_CLASSES = ("maxQueuedRequests", "shedAfter", "requestTimeout")
"""Fields of a service class that only Inflight's own engine has; the gateway uses the others for every type."""

_POLICIES = {VLLM: ("fcfs", "priority", "deadline"), CUSTOM: ("fcfs", "deadline")}
"""Values of scheduling.policy by type. The gateway orders what it holds, whatever the engine does."""

_PARSERS = {"toolCallParser": ToolCallParser, "reasoningParser": ReasoningParser}
"""Fields with the name of a parser, and the names that Inflight's engine knows."""

VLLM_FLAGS = (
    "host port model revision served-model-name scheduler-cls tensor-parallel-size tp dtype max-model-len max-num-seqs"
    " max-num-batched-tokens gpu-memory-utilization kv-cache-memory-bytes kv-cache-dtype enable-prefix-caching"
    " no-enable-prefix-caching scheduling-policy shutdown-timeout otlp-traces-endpoint"
    " tool-call-parser enable-auto-tool-choice reasoning-parser"
).split()
"""Flags of `vllm serve` that the operator sets; extraArgs may not repeat them. Underscores mean dashes there."""


def engine_rules(parts: Mapping[str, type[BaseModel]], own_flags: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the rules of `InferenceServiceSpec`.

    Args:
        parts: models of the parts of the spec that `TYPES_OF_FIELDS` names, for their defaults.
        own_flags: flags of Inflight's engine that the operator sets.
    """
    flags = {INFLIGHT: tuple(own_flags), VLLM: tuple(VLLM_FLAGS)}
    return [
        *(_keeps_default(parts, path, types) for path, types in TYPES_OF_FIELDS.items()),
        rule(
            f"self.engine.type == '{INFLIGHT}' || !has(self.engine.scheduling.classes)"
            f" || self.engine.scheduling.classes.all(c, {' && '.join(f'!has(c.{name})' for name in _OF_CLASSES)})",
            f"engine.scheduling.classes: {_listed(_OF_CLASSES)} are for engine.type inflight only",
            fieldPath=".engine.scheduling.classes",
        ),
        *(_has_policy(name, policies) for name, policies in _POLICIES.items()),
        *(_has_parser(name, get_args(parsers)) for name, parsers in _PARSERS.items()),
        *(_no_flag_twice(name, taken) for name, taken in flags.items()),
        rule(
            "!self.engine.?kvEvents.orValue(false) || !has(self.engine.extraArgs)"
            " || !self.engine.extraArgs.exists(a, a.matches('^--kv[-_]events[-_]config([.=].*)?$'))",
            "engine.kvEvents and --kv-events-config in engine.extraArgs exclude each other: keep one",
            fieldPath=".engine.kvEvents",
        ),
        rule(
            f"self.engine.type != '{CUSTOM}' || has(self.engine.image)",
            "engine.type custom needs engine.image",
            fieldPath=".engine.image",
        ),
        rule(
            f"self.engine.type != '{CUSTOM}' || !self.model.source.startsWith('builtin://')",
            "model.source builtin:// is a model in Inflight's own image: with engine.type custom use hf:// or pvc://",
            fieldPath=".model.source",
        ),
        rule(
            f"self.engine.type == '{INFLIGHT}' || !self.model.source.matches('^(s3|gs|az|https)://')",
            "model.source s3://, gs://, az:// and https:// are for engine.type inflight only: use hf:// or pvc://",
            fieldPath=".model.source",
        ),
        rule(
            f"!has(self.tuning.override) || self.engine.type == '{INFLIGHT}'"
            f" || (self.engine.type == '{VLLM}' && self.engine.plugin)",
            "tuning.override needs limits that change while engines run: engine.type inflight, or vllm with"
            " engine.plugin true",
            fieldPath=".tuning.override",
        ),
    ]


def _keeps_default(parts: Mapping[str, type[BaseModel]], path: str, types: tuple[str, ...]) -> dict[str, Any]:
    missing = " || ".join(f"self.engine.type == '{name}'" for name in types)
    default = _default(parts, path)
    value = "self.?" + path.replace(".", ".?")
    if default in (None, []):
        kept = f"!{value}.hasValue()" if default is None else f"{value}.orValue([]).size() == 0"
    else:
        given = f"{value}.orValue({_literal(default)})"
        kept = f"{given} == {_literal(default)}"
        if isinstance(default, str) and default.isdigit():
            kept += f" || {given} == {default}"  # a quantity, which manifests may have as a number
    return rule(f"{missing} || {kept}", f"{path} is for engine.type {_listed(types)} only", fieldPath=f".{path}")


def _default(parts: Mapping[str, type[BaseModel]], path: str) -> Any:
    """Returns the default of a field, as JSON has it."""
    part, *parents, last = path.split(".")
    model = parts[part]
    for name in parents:
        model = type(_default_of(model, name))
    return _default_of(model, last)


def _default_of(model: type[BaseModel], name: str) -> Any:
    return model.model_fields[to_snake(name)].get_default(call_default_factory=True)


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def _has_policy(name: str, policies: tuple[str, ...]) -> dict[str, Any]:
    return rule(
        f"self.engine.type != '{name}' || self.engine.scheduling.?policy.orValue('fcfs') in {list(policies)}",
        f"engine.scheduling.policy must be {_listed(policies, 'or')} with engine.type {name}",
        fieldPath=".engine.scheduling.policy",
    )


def _has_parser(name: str, parsers: tuple[str, ...]) -> dict[str, Any]:
    return rule(
        f"self.engine.type != '{INFLIGHT}' || self.engine.?{name}.orValue('auto') in {list(parsers)}",
        f"engine.{name} must be {_listed(parsers, 'or')} with engine.type {INFLIGHT}",
        fieldPath=f".engine.{name}",
    )


def _no_flag_twice(name: str, flags: tuple[str, ...]) -> dict[str, Any]:
    dashes = "|".join(flags)
    written = f"--?({dashes.replace('-', '[-_]')})" if name == VLLM else f"--({dashes})"
    return rule(
        f"self.engine.type != '{name}' || !has(self.engine.extraArgs)"
        f" || !self.engine.extraArgs.exists(a, a.matches('^{written}(=.*)?$'))",
        "engine.extraArgs cannot repeat a flag that the operator sets"
        f" ({', '.join(f'--{flag}' for flag in flags)}): those that can be chosen have a field of the spec or"
        " a value of the chart",
        fieldPath=".engine.extraArgs",
    )


def _listed(words: tuple[str, ...], conjunction: str = "and") -> str:
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last
