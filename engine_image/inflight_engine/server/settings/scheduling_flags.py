"""Scheduling flags: policy, classes, preemption, the prefix cache, and the scheduling record."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.victims import VICTIMS
from inflight_engine.server.settings.service_class import parse_service_class
from inflight_settings.engine import EngineConfig
from inflight_settings.flag_types import number, size
from inflight_settings.scheduling import ServiceClass


class AppendClass(argparse.Action):
    """Each use adds a class; a name stands for one class only."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        classes: list[ServiceClass] = getattr(namespace, self.dest) or []
        if any(service_class.name == values.name for service_class in classes):
            raise argparse.ArgumentError(self, f"there are two classes named {values.name}")
        setattr(namespace, self.dest, [*classes, values])


def _service_class(text: str) -> ServiceClass:
    try:
        return parse_service_class(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_scheduling_flags(add: Callable[..., None]) -> None:
    """`add(name, help, **how)`: as `ArgumentParser.add_argument`."""
    default = {field.name: field.default for field in fields(EngineConfig)}
    add(
        "--scheduling-policy",
        "order of waiting requests within a class: fcfs, by arrival; sjf, by expected_output_tokens, else max_tokens; "
        "priority, by the number of the request or its class, with aging; fair, by tokens served to the tenant (header "
        "X-Inflight-Tenant, see --trust-tenant-header); deadline, by arrival among requests that can still keep their "
        "TTFT target. Hints for other policies are ignored (default: deadline where there is a TTFT target, else fcfs)",
        choices=tuple(POLICIES),
    )
    add(
        "--ttft-target",
        "target of time to first token, in seconds, of classes without their own; policy deadline orders by it",
        type=number(float, 0.001, 1e6),
        metavar="SECONDS",
    )
    add(
        "--ttft-per-1k-tokens",
        "seconds that each 1,000 tokens of a prompt add to its TTFT target",
        type=number(float, 0, 60),
        default=default["ttft_per_1k_tokens"],
        metavar="SECONDS",
    )
    add(
        "--late-share",
        "share of picks that deadline gives to late requests, which prevents starvation",
        type=number(float, 0.001, 1),
        default=default["late_share"],
        metavar="SHARE",
    )
    add(
        "--priority-aging",
        "seconds of waiting that count as one step of priority",
        type=number(float, 0.001, 1e6),
        default=default["priority_aging"],
        metavar="SECONDS",
    )
    add(
        "--service-class",
        "a class of requests with its own queue; repeatable. weight: share of tokens while several classes wait; "
        "priority: of requests without one; ttft, tpot: targets in seconds, counted in metrics, and policy deadline "
        "orders by ttft; max_queued: waiting requests, beyond it 503; shed_after, request_timeout: as the flags. "
        "Requests name it as `class`; the first is the default (default: one class, `default`)",
        type=_service_class,
        action=AppendClass,
        dest="classes",
        metavar="NAME[:weight=4,priority=0,ttft=0.5,tpot=0.05,max_queued=100,shed_after=5,request_timeout=600]",
    )
    add(
        "--preemption",
        "what happens to the KV cache of a preempted request: recompute, or swap to host memory; auto: the faster by "
        "measurement",
        choices=PREEMPTION_MODES,
        default=default["preemption"],
    )
    add(
        "--preemption-victim",
        "request that is preempted when the KV cache is full",
        choices=tuple(VICTIMS),
        default=default["preemption_victim"],
    )
    add(
        "--swap-space",
        "host memory for the KV cache of preempted requests, as in 4Gi; 0: none",
        type=partial(size, least=0),
        default=default["swap_space"],
        metavar="SIZE",
    )
    add(
        "--no-prefix-caching",
        "disable the prefix cache",
        action="store_false",
        dest="prefix_caching",
    )
    add(
        "--record",
        "write arrivals and scheduling decisions to this file, for `inflight-engine replay FILE`",
        metavar="FILE",
    )
