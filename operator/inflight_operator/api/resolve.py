"""Defaults that depend on other fields: the one place for each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight_base.manifest import engines
from inflight_base.manifest.engines import EngineType
from inflight_base.manifest.lenient import Part
from inflight_base.manifest.units import parse_duration, parse_quantity, parse_share
from inflight_operator.api.engine.fields import BUCKETS, Model
from inflight_operator.api.pods.rollout import WAVE, Rollout
from inflight_operator.api.spec import InferenceServiceSpec
from inflight_operator.api.types import InferenceService
from inflight_settings.limits import Limits, LimitsBounds

MODEL_FOLDER = "/models"
"""Where a pvc:// claim or an oci:// image is mounted in the engine container."""

DEFAULT_MIN_BATCHED_TOKENS = 64


def capacity(spec: InferenceServiceSpec) -> Limits:
    """The limits that engines are started with."""
    return Limits(spec.engine.max_num_seqs, spec.engine.max_num_batched_tokens)


def tuning_bounds(spec: InferenceServiceSpec) -> LimitsBounds:
    """The bounds of `spec.tuning`, with the engine's capacities where unset."""
    seqs, tokens = spec.tuning.max_num_seqs, spec.tuning.max_num_batched_tokens
    most_seqs = seqs.max if seqs.max is not None else spec.engine.max_num_seqs
    most_tokens = tokens.max if tokens.max is not None else spec.engine.max_num_batched_tokens
    least_tokens = tokens.min if tokens.min is not None else min(DEFAULT_MIN_BATCHED_TOKENS, most_tokens)
    return LimitsBounds(Limits(seqs.min, least_tokens), Limits(most_seqs, most_tokens))


def served_name(service: InferenceService) -> str:
    """The name clients put in `model`."""
    return service.spec.model.served_name or service.metadata.name


def engine_type(spec: InferenceServiceSpec) -> EngineType:
    """The facts about the type of the service's engines."""
    engine = spec.engine.model_dump(mode="json", by_alias=True, include={"type", "plugin", "custom"})
    return engines.engine_type(Part(engine, "spec.engine", []))


def startup_limit_seconds(spec: InferenceServiceSpec) -> int:
    """Seconds for an engine to download and load its model before it is restarted."""
    return math.ceil(parse_duration(spec.rollout.startup_timeout))


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """Bounds of a rollout, as numbers or percentages of the replicas.

    Attributes:
        max_surge: pods beyond the replicas.
        max_unavailable: replicas that may be missing. Where both round to 0, Kubernetes takes 1 here.
    """

    max_surge: int | str
    max_unavailable: int | str


def rolling_update(rollout: Rollout, *, release: bool = False) -> RollingUpdate:
    """The bounds of a rollout.

    Args:
        release: remove old pods first, whatever the strategy.
    """
    surge, unavailable = rollout.max_surge, rollout.max_unavailable
    if rollout.strategy == "ReleaseFirst":
        return RollingUpdate(0 if surge is None else surge, WAVE if unavailable is None else unavailable)
    if release:
        return RollingUpdate(0, _above_zero(unavailable))
    return RollingUpdate(WAVE if surge is None else surge, 0 if unavailable is None else unavailable)


def evictions(rollout: Rollout) -> int | str:
    """Pods that node drains may evict at a time, above 0: a drain could not end otherwise."""
    return _above_zero(rolling_update(rollout).max_unavailable)


def _above_zero(share: int | str | None) -> int | str:
    return WAVE if share is None or parse_share(share).number == 0 else share


def service_url(service: InferenceService) -> str:
    """The service's address inside the cluster, without a path."""
    return f"http://{service.metadata.name}.{service.metadata.namespace}.svc"


def claim_and_folder(source: str) -> tuple[str, str] | None:
    """Claim name and folder of a `pvc://CLAIM/FOLDER` source; None for other sources."""
    if not source.startswith("pvc://"):
        return None
    claim, _, folder = source.removeprefix("pvc://").partition("/")
    return claim, folder.strip("/")


def downloads_model(source: str) -> bool:
    """Returns True if the engine downloads the model to a disk of its pod."""
    return source.startswith("hf://")


def is_stored(source: str) -> bool:
    """Returns True if the model is in an object store or on a web server."""
    return source.startswith((*BUCKETS, "https://"))


def asks_peers(spec: InferenceServiceSpec) -> bool:
    """Returns True if engines read weights from each other."""
    return bool(spec.model.peers) and spec.engine.type == engines.INFLIGHT and is_stored(spec.model.source)


def hands_over(spec: InferenceServiceSpec) -> bool:
    """Returns True if engines read keys and values from each other: from one that drains, or as a router asks."""
    return spec.engine.type == engines.INFLIGHT and parse_quantity(spec.engine.kv_cache.swap) > 0


def disk_size(spec: InferenceServiceSpec) -> str:
    """Returns the bound of the disk space for the model in each pod, as a quantity.

    The default is large enough for any model that the pod could serve: 256Gi is more than the memory of any one
    accelerator, and 64Gi on CPU is 16 times the memory limit.
    """
    storage, count = spec.model.storage, spec.accelerator.count
    return str(storage) if storage is not None else f"{256 * count}Gi" if count else "64Gi"


def model_image(source: str) -> str | None:
    """Reference of the image of an `oci://IMAGE` source; None for other sources."""
    return source.removeprefix("oci://") if source.startswith("oci://") else None


def model_argument(model: Model) -> str:
    """MODEL of `inflight-engine serve`: the source itself, or its folder in the volume that a pod mounts."""
    if claimed := claim_and_folder(model.source):
        return f"{MODEL_FOLDER}/{claimed[1]}"
    if model_image(model.source) is None:
        return model.source
    return f"{MODEL_FOLDER}/{model.path.strip('/')}" if model.path else MODEL_FOLDER
