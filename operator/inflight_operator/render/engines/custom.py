"""The container of a server that the operator does not know: what `spec.engine.custom` says of it."""

from __future__ import annotations

import math

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import HTTP_PORT_NAME, METRICS_PORT_NAME
from inflight_base.manifest.units import parse_duration
from inflight_operator.api.engine.custom import CustomEngine
from inflight_operator.api.resolve import model_argument, served_name, startup_limit_seconds
from inflight_operator.api.types import InferenceService
from inflight_operator.render.engines.container import (
    EngineContainer,
    hub_environment,
    keeps_serving,
    third_party_probes,
)
from inflight_operator.render.plan import Settings


def custom_container(service: InferenceService, settings: Settings) -> EngineContainer:
    """The container. Kubernetes replaces `$(INFLIGHT_MODEL)` in command and args."""
    engine, accelerator = service.spec.engine, service.spec.accelerator
    custom = engine.custom or CustomEngine()
    start = {"command": list(custom.command), "args": list(custom.args)}
    metrics = {} if custom.metrics_port is None else {METRICS_PORT_NAME: custom.metrics_port}
    own = {accelerator.resource: str(accelerator.count)} if accelerator.count else {}
    requests: Manifest = {"cpu": "250m", "memory": "1Gi", **own}
    return EngineContainer(
        image=engine.image or "",
        start={name: words for name, words in start.items() if words},
        ports={HTTP_PORT_NAME: custom.port, **metrics},
        environment={
            "INFLIGHT_MODEL": {"value": model_argument(service.spec.model).removeprefix("hf://")},
            "INFLIGHT_SERVED_NAME": {"value": served_name(service)},
            **hub_environment(service),
        },
        resources={"requests": requests, **({"limits": own} if own else {})},
        probes=third_party_probes(
            custom.ready_path, custom.live_path or custom.ready_path, startup_limit_seconds(service.spec)
        ),
        stop=keeps_serving(math.ceil(parse_duration(service.spec.rollout.drain_timeout))),
        admin=False,
    )
