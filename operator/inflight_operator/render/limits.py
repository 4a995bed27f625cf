"""The ConfigMap with the limits in force, the version of the model, and the engines that have weights, for new pods.

It is mounted as files, so that none changes the pod template: running pods get limits over HTTP, new pods read the
files.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import child_names
from inflight_contract.model_blocks import PEERS_FILE
from inflight_contract.model_version import DIGESTS_FILE
from inflight_operator.api.resolve import capacity
from inflight_operator.api.types import InferenceService
from inflight_operator.render.metadata import child
from inflight_settings.limits import LimitsInForce

LIMITS_FILE = "limits.json"


def limits_config_map(
    service: InferenceService,
    in_force: LimitsInForce,
    digests: tuple[tuple[str, str], ...],
    peers: tuple[tuple[str, str], ...] = (),
) -> Manifest:
    """The ConfigMap. Limits are capped at the capacities, which the user may have lowered since the decision: an engine
    refuses to start with higher limits."""
    limits = in_force.limits.at_most(capacity(service.spec))
    content = {**asdict(limits), "revision": in_force.revision}
    return {
        **child("v1", "ConfigMap", service, child_names(service.metadata.name).limits),
        "data": {
            LIMITS_FILE: json.dumps(content),
            **({DIGESTS_FILE: json.dumps(dict(digests))} if digests else {}),
            **({PEERS_FILE: json.dumps(dict(peers))} if peers else {}),
        },
    }
