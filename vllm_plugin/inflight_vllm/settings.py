"""Settings of the plugin, from environment variables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inflight_settings.scheduling import ServiceClass, parse_service_class

_ADMIN_PORT = 8001
_DRAIN_DELAY_S, _DRAIN_TIMEOUT_S = 5.0, 120.0


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The plugin's settings.

    Attributes:
        admin_port: of changes and metrics.
        drain_delay: seconds after SIGTERM in which new requests are still taken.
        drain_timeout: seconds after that in which running requests may finish.
        limits_file: limits at the start, as JSON.
        tenant_key_file: requests have to be signed with a key of this file.
        ttft_target: target of time to first token, seconds, of classes without their own.
        classes: by name; the first is the one of requests without a class. Empty: there are none.
    """

    admin_port: int
    drain_delay: float
    drain_timeout: float
    limits_file: Path | None
    tenant_key_file: Path | None
    ttft_target: float | None
    classes: Mapping[str, ServiceClass]

    @property
    def has_targets(self) -> bool:
        """Requests have deadlines."""
        return self.ttft_target is not None or any(each.ttft_target is not None for each in self.classes.values())


def read_settings(environment: Mapping[str, str]) -> PluginSettings:
    """Read the settings; a variable that is unset or empty has its default.

    Raises:
        ValueError: a variable is not what it has to be; the message names it.
    """

    def number(name: str, default: float) -> float:
        text = environment.get(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1
        if not 0 <= value < float("inf"):
            raise ValueError(f"${name} must be a number of 0 or more, not {text!r}")
        return value

    def file(name: str) -> Path | None:
        return Path(environment[name]) if environment.get(name) else None

    try:
        texts = environment.get("INFLIGHT_CLASSES", "").split(";")
        classes = [parse_service_class(text) for text in texts if text]
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"$INFLIGHT_CLASSES: {error}") from None
    return PluginSettings(
        admin_port=int(number("INFLIGHT_ADMIN_PORT", _ADMIN_PORT)),
        drain_delay=number("INFLIGHT_DRAIN_DELAY", _DRAIN_DELAY_S),
        drain_timeout=number("INFLIGHT_DRAIN_TIMEOUT", _DRAIN_TIMEOUT_S),
        limits_file=file("INFLIGHT_LIMITS_FILE"),
        tenant_key_file=file("INFLIGHT_TENANT_KEY_FILE"),
        ttft_target=number("INFLIGHT_TTFT_TARGET", 0) or None,
        classes={each.name: each for each in classes},
    )
