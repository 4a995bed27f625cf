"""The ConfigMap with the limits in force, which a new pod starts with.

It is mounted as a file, so that a tuning step changes no pod template: running pods are told over HTTP, new ones read
it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from inflight_operator.render.labels import child_metadata, child_names
from inflight_operator.render.plan import LimitsInForce, Manifest

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

LIMITS_FILE = "limits.json"


def limits_config_map(service: InferenceService, limits: LimitsInForce | None) -> Manifest:
    """The ConfigMap; without a decision yet, the capacities at revision 0.

    Limits are held to the capacities, which the user may have lowered since the limits were decided: an engine
    refuses to start above them.
    """
    engine = service.spec.engine
    content = {
        "max_num_seqs": min(limits.max_num_seqs if limits else engine.max_num_seqs, engine.max_num_seqs),
        "max_num_batched_tokens": min(
            limits.max_num_batched_tokens if limits else engine.max_num_batched_tokens, engine.max_num_batched_tokens
        ),
        "revision": limits.revision if limits else 0,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(service, child_names(service.metadata.name).limits),
        "data": {LIMITS_FILE: json.dumps(content)},
    }
