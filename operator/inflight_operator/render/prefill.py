"""The InferenceService whose engines compute prompts for another one (`spec.disaggregation`)."""

from __future__ import annotations

from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import API_VERSION, KIND, child_names
from inflight_operator.api.disaggregation import Disaggregation
from inflight_operator.api.gateway import Gateway
from inflight_operator.api.pods.network import NetworkPolicy
from inflight_operator.api.resolve import served_name
from inflight_operator.api.scaling import Targets
from inflight_operator.api.types import InferenceService
from inflight_operator.render.metadata import child
from inflight_operator.render.plan import Settings
from inflight_operator.render.service import behind_gateway


def has_prefill(service: InferenceService, settings: Settings) -> bool:
    """Returns True if engines of a second InferenceService compute prompts for the service: nobody would send them any
    without a gateway, and a service that is stopped by `replicas` 0 has none."""
    spec = service.spec
    stopped = spec.scaling.mode == "External" and spec.replicas == 0
    return spec.disaggregation.mode != "Off" and behind_gateway(service, settings) and not stopped


def prefill_service(service: InferenceService) -> Manifest:
    """The InferenceService: the spec of `service`, with the replicas, accelerator and template of its prefill engines.

    Engines must know the name that clients put in `model`. What is for clients goes, since only the gateway sends
    requests: `gateway` and `disaggregation`, which are written as off, so that nobody turns them on, and gRPC;
    `networkPolicy` lets no client in, whether the owner still asks for the set or not. So does what would be done twice
    (`model.prefetch`) or is about other replicas: `replicas` and mode External, `scaling.targets` (the operator decides
    by the capacity that it measures), `tuning.override`, and the price where the accelerator is another one.
    """
    spec, given = service.spec, service.spec.disaggregation.prefill
    most = spec.scaling.max_replicas if given.max_replicas is None else given.max_replicas
    scaling = {"mode": "Operator", "min_replicas": given.min_replicas, "max_replicas": most}
    changed: dict[str, Any] = {
        "model": spec.model.model_copy(update={"served_name": served_name(service), "prefetch": None}),
        "engine": spec.engine.model_copy(update={"grpc": False}),
        "accelerator": given.accelerator or spec.accelerator,
        "template": given.template or spec.template,
        "scaling": spec.scaling.model_copy(update={**scaling, "targets": Targets(), "sleep": None}),
        "tuning": spec.tuning.model_copy(update={"override": None}),
        "gateway": Gateway(enabled=False),
        "disaggregation": Disaggregation(mode="Off"),
        "cost": spec.cost if given.accelerator is None else None,
        "network_policy": NetworkPolicy(from_=[]),
        "replicas": None,
    }
    # What is unset stays so: an apply must not own what the API server fills in by itself.
    wanted = spec.model_copy(update=changed).model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True
    )
    return {**child(API_VERSION, KIND, service, child_names(service.metadata.name).prefill), "spec": wanted}
