"""Default resource requests of the engine's pod, and bounds on its volumes."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.units import parse_quantity

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

SCRATCH_SIZE = "4Gi"
"""Bound of /tmp: compiled kernels and caches of libraries are some hundred MB, a recording a few GB in a day."""

SHARED_MEMORY_SIZE = "1Gi"
"""Bound of /dev/shm, through which the processes of one engine exchange tensors; it counts as memory of the pod."""


def engine_resources(service: InferenceService) -> Manifest:
    """Requests and limits of the engine's container; `template.resources` is merged over them.

    No pod is BestEffort: the kubelet evicts first those that use more than they request. With accelerators the requests
    are near what an engine uses at least: for each accelerator one process that launches its kernels (one core, 2 to
    3 GB of host memory with CUDA's context) and its part of the buffers that weights are read through. The nodes that
    such accelerators come in have 4 cores and 16 GB or more for each, so the requests do not decide where a pod fits. A
    memory limit would be a guess: how much host memory loading takes depends on the model.

    On CPU weights and cache are host memory, so there is a limit. The engine uses idle cores; 250m is its share under
    contention.
    """
    accelerator = service.spec.accelerator
    swap = parse_quantity(service.spec.engine.kv_cache.swap)
    if count := accelerator.count:
        # An extended resource is not overcommitted: request and limit must be equal.
        own = {accelerator.resource: str(count)}
        return {"requests": {"cpu": str(count), "memory": _more(f"{4 * count}Gi", swap), **own}, "limits": own}
    return {"requests": {"cpu": "250m", "memory": _more("1Gi", swap)}, "limits": {"memory": _more("4Gi", swap)}}


def download_size(service: InferenceService) -> str:
    """Bound of the volume that an hf:// model is downloaded to, as a quantity.

    The default is large enough for any model that the pod could serve: 256Gi is more than the memory of any one
    accelerator, and 64Gi on CPU is 16 times the memory limit.
    """
    storage, count = service.spec.model.storage, service.spec.accelerator.count
    return str(storage) if storage is not None else f"{256 * count}Gi" if count else "64Gi"


def _more(memory: str, swap: Decimal) -> str:
    """The quantity with the swap memory on top; unchanged without swap."""
    return str(int(parse_quantity(memory) + swap)) if swap else memory
