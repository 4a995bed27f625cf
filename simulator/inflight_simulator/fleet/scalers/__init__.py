"""Published autoscalers, each implemented from its source, for comparison with Inflight on the same requests.

Each documents source, version, defaults, and substitutes for signals that the simulation lacks. A scaler is an interval
and a function from a `FleetView` to replicas; most are a formula within an `Hpa`. The fleet's bounds always replace
those of a recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight_simulator.errors import InputError
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.scalers.aibrix import Aibrix
from inflight_simulator.fleet.scalers.dynamo import DynamoLoad, DynamoSla, DynamoThroughput, IterationModel
from inflight_simulator.fleet.scalers.hpa import hpa_concurrency, hpa_kv, hpa_queue, keda_production_stack
from inflight_simulator.fleet.scalers.knative import Knative
from inflight_simulator.fleet.scalers.kubeai import KubeAI
from inflight_simulator.fleet.scalers.llmd import (
    idle_prefill_rate,
    llmd_queue,
    llmd_saturation,
    llmd_slo,
    llmd_token_aware,
)
from inflight_simulator.fleet.scalers.wva import wva
from inflight_simulator.fleet.view import Fixed, Scaler


def _iterations(config: FleetConfig) -> IterationModel:
    model = config.replica
    return IterationModel(model.cost, config.limits, model.kv_tokens)


_SCALERS: Mapping[str, Callable[[FleetConfig], Scaler]] = {
    "keda-production-stack": lambda config: keda_production_stack(),
    "llmd-queue": lambda config: llmd_queue(),
    "llmd-saturation": lambda config: llmd_saturation(),
    "llmd-token-aware": lambda config: llmd_token_aware(idle_prefill_rate(config.replica.cost, config.limits)),
    "llmd-slo": lambda config: llmd_slo(config.targets.ttft, config.targets.tpot),
    "wva": lambda config: wva(),
    "dynamo-throughput": lambda config: DynamoThroughput(),
    "dynamo-load": lambda config: DynamoLoad(_iterations(config), config.targets.ttft, config.targets.tpot),
    "dynamo-sla": lambda config: DynamoSla(_iterations(config), config.targets.ttft, config.targets.tpot),
    "aibrix-apa": lambda config: Aibrix("apa"),
    "aibrix-kpa": lambda config: Aibrix("kpa"),
    "kubeai": lambda config: KubeAI(),
    "knative": lambda config: Knative(),
}
"""Scalers without a number behind their name."""

_TARGETED: Mapping[str, Callable[[float], Scaler]] = {
    "fixed": lambda count: Fixed(int(count)),
    "hpa-queue": hpa_queue,
    "hpa-kv": hpa_kv,
    "hpa-concurrency": hpa_concurrency,
}
"""Scalers that take a number, behind a colon."""

COMPARED = ("hpa-queue:5", "hpa-kv:0.8", "hpa-concurrency:16", *_SCALERS)
"""Scalers compared with the autopilot and the oracle: recipes as published, with the usual targets."""

NAMES = ("fixed:N", "hpa-queue:T", "hpa-kv:T", "hpa-concurrency:T", *_SCALERS)
"""Names of all scalers on the command line."""


def make_scaler(name: str, config: FleetConfig) -> Scaler:
    """Makes a scaler. It uses the parts of `config` that its user would set: the latency targets, and the replica's
    cost model where its recipe asks for a calibration or a profile.

    Raises:
        InputError: there is no scaler of this name, or the number behind it is none; the message says what there is.
    """
    kind, colon, text = name.partition(":")
    if kind in _SCALERS:
        if colon:
            raise InputError(f"scaler {kind} takes no number, so not {name!r}")
        return _SCALERS[kind](config)
    if kind not in _TARGETED:
        raise InputError(f"there is no scaler {name!r}; there are {', '.join(NAMES)}, autopilot and oracle")
    return _TARGETED[kind](_number(kind, text))


def _number(kind: str, text: str) -> float:
    example = {"fixed": "fixed:8", "hpa-kv": "hpa-kv:0.8"}.get(kind, f"{kind}:5")
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"scaler {kind} needs a number, as in {example}") from None
    if kind == "fixed" and not (value.is_integer() and 1 <= value <= 100_000):
        raise InputError(f"fixed needs a whole number of replicas, as in {example}, not {text}")
    if not 0 < value < 1e9:
        raise InputError(f"the target of {kind} must be above 0, as in {example}, not {text}")
    return value
