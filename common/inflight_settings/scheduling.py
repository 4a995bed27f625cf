"""Settings of the scheduler: order of waiting requests, service classes, preemption, prefix cache."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from inflight_policies.deadline import LATE_SHARE
from inflight_policies.priority import PRIORITY_AGING_S
from inflight_settings.flags import parser_of
from inflight_settings.setting import setting, settings_of

DEFAULT_CLASS = "default"

PolicyName = Literal["fcfs", "sjf", "priority", "fair", "deadline"]
PreemptionMode = Literal["auto", "recompute", "swap"]
VictimName = Literal["last_arrived", "longest_first", "most_preempted_last"]

_MAX_NAME_LENGTH = 63
_MOST_SECONDS = 1e6


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """A kind of traffic with its own queue. `name`: requests give it as `class`."""

    name: str = DEFAULT_CLASS
    weight: float = setting(1.0, "share of tokens while several classes wait", gt=0, le=1_000_000)
    priority: int = setting(0, "of requests without one", ge=-100, le=100)
    ttft_target: float | None = setting(
        None,
        "target of time to first token in seconds, counted in metrics, and policy deadline orders by it",
        flag="ttft",
        gt=0,
        le=_MOST_SECONDS,
        unit="seconds",
    )
    tpot_target: float | None = setting(
        None,
        "target of time per output token in seconds, counted in metrics",
        flag="tpot",
        gt=0,
        le=_MOST_SECONDS,
        unit="seconds",
    )
    max_queued_requests: int | None = setting(None, "waiting requests, beyond it 503", flag="max-queued", ge=1)
    shed_after: float | None = setting(None, "as --shed-after", gt=0, le=_MOST_SECONDS, unit="seconds")
    request_timeout: float | None = setting(None, "as --request-timeout", gt=0, le=_MOST_SECONDS, unit="seconds")


_CLASS_KEYS = {each.flag.replace("-", "_"): (name, each) for name, each in settings_of(ServiceClass).items()}


def parse_service_class(text: str) -> ServiceClass:
    """Parses a service class from `NAME` or `NAME:weight=4,priority=0`.

    Raises:
        argparse.ArgumentTypeError: the text has another form; the message names the part.
    """
    name, colon, pairs = text.partition(":")
    if len(name) > _MAX_NAME_LENGTH or re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) is None:
        raise argparse.ArgumentTypeError(
            f"{name!r} is not the name of a class: small letters, digits and dashes inside, at most {_MAX_NAME_LENGTH}"
        )
    values: dict[str, Any] = {}
    for pair in pairs.split(",") if colon else ():
        key, equals, value = pair.partition("=")
        if key not in _CLASS_KEYS or not equals:
            keys = ", ".join(f"{key}=" for key in _CLASS_KEYS)
            raise argparse.ArgumentTypeError(f"class {name}: {pair!r} is not one of {keys}")
        field, stated = _CLASS_KEYS[key]
        if field in values:
            raise argparse.ArgumentTypeError(f"class {name}: {key} is given twice")
        try:
            values[field] = parser_of(stated)(value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"class {name}: {key} {error}") from None
    return ServiceClass(name, **values)


def timeouts_of(classes: Iterable[ServiceClass], seconds: float) -> dict[str, float]:
    """Return the request timeout of each class by its name, in seconds. Args: seconds: of classes without their own."""
    return {each.name: seconds if each.request_timeout is None else each.request_timeout for each in classes}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """How the scheduler decides. `classes` has at least one.

    Attributes:
        late_wait: seconds of waiting after which policy deadline gives late requests a share of the picks, too, and for
            which a request waits at most for blocks behind host memory. No setting of its own: the server makes it half
            of `queue_timeout`.
        request_timeout: seconds from the arrival of a request to its first token, at most, in classes without their
            own. No setting of its own: that of the server.

    Raises:
        ValueError: the name of a choice is unknown.
    """

    policy: PolicyName = setting(
        None,
        "order of waiting requests within a class: fcfs, by arrival; sjf, by expected_output_tokens, else max_tokens; "
        "priority, by the number of the request or its class, with aging; fair, by tokens served to the tenant (header "
        "X-Inflight-Tenant, see --trust-tenant-header); deadline, by arrival among requests that can still keep their "
        "TTFT target. Hints for other policies are ignored (default: deadline where there is a TTFT target, else fcfs)",
        flag="scheduling-policy",
    )
    ttft_target: float | None = setting(
        None,
        "target of time to first token, in seconds, of classes without their own; policy deadline orders by it",
        ge=0.001,
        le=_MOST_SECONDS,
        unit="seconds",
    )
    ttft_per_1k_tokens: float = setting(
        0.0, "seconds that each 1,000 tokens of a prompt add to its TTFT target", ge=0, le=60, unit="seconds"
    )
    late_share: float = setting(
        LATE_SHARE,
        "share of prompt tokens that deadline gives to late requests while others wait, which prevents starvation",
        ge=0.001,
        le=1,
        metavar="SHARE",
    )
    late_wait: float = 30.0
    request_timeout: float = 600.0
    priority_aging: float = setting(
        PRIORITY_AGING_S,
        "seconds of waiting that count as one step of priority",
        ge=0.001,
        le=_MOST_SECONDS,
        unit="seconds",
    )
    classes: tuple[ServiceClass, ...] = setting(
        (ServiceClass(),),
        "a class of requests with its own queue; repeatable. "
        + "; ".join(f"{key}: {each.help}" for key, (_, each) in _CLASS_KEYS.items())
        + ". Requests name it as `class`; the first is the default (default: one class, `default`)",
        flag="service-class",
        parse=parse_service_class,
        metavar="NAME[:weight=4,priority=0,ttft=0.5,tpot=0.05,max_queued=100,shed_after=5,request_timeout=600]",
    )
    kv_headroom: float = setting(
        0.03,
        "share of the KV cache that new requests leave to running ones",
        ge=0,
        le=0.9,
        metavar="SHARE",
    )
    preemption: PreemptionMode = setting(
        "auto",
        "how KV blocks that left the cache come back to a request, a preempted one too: recompute, or swap, which "
        "loads those that host memory has; auto: the faster by measurement",
    )
    preemption_victim: VictimName = setting("last_arrived", "request that is preempted when the KV cache is full")
    prefix_caching: bool = setting(True, "disable the prefix cache, and with it the host memory behind it")

    def __post_init__(self) -> None:
        if self.policy is None:
            targets = [self.ttft_target, *(each.ttft_target for each in self.classes)]
            policy = "fcfs" if all(target is None for target in targets) else "deadline"
            object.__setattr__(self, "policy", policy)
        kind: type = type(self)
        for name, each in settings_of(kind).items():
            if each.choices and getattr(self, name) not in each.choices:
                raise ValueError(f"{name} must be one of {', '.join(each.choices)}, not {getattr(self, name)!r}")

    @property
    def keeps_evicted(self) -> bool:
        """Tell whether blocks that the prefix cache evicts are kept elsewhere, where there is memory for them."""
        return self.prefix_caching and self.preemption != "recompute"

    @property
    def ttft_targets(self) -> dict[str, float]:
        """TTFT targets in seconds by class, of those that have one."""
        targets = {
            each.name: self.ttft_target if each.ttft_target is None else each.ttft_target for each in self.classes
        }
        return {name: target for name, target in targets.items() if target is not None}

    @property
    def request_timeouts(self) -> dict[str, float]:
        """Longest time to the first token in seconds by class."""
        return timeouts_of(self.classes, self.request_timeout)

    @property
    def ttft_per_token(self) -> float:
        """Seconds that each token of a prompt adds to its TTFT target."""
        return self.ttft_per_1k_tokens / 1000

    @property
    def scheduling(self) -> dict[str, Any]:
        """The settings of this class by field, without those of a subclass."""
        return {each.name: getattr(self, each.name) for each in fields(SchedulingSettings)}
