"""The InferenceService of a simulated fleet, which operator and gateway read as they do in a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from inflight_operator.api.types import InferenceService
from inflight_simulator.errors import InputError
from inflight_simulator.fleet.config import FleetConfig

NAMESPACE, NAME = "simulation", "fleet"


def manifest_of(config: FleetConfig) -> dict[str, Any]:
    """Returns the service as its user would write it."""
    capacity = config.capacity
    return {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": NAME, "generation": 1},
        "spec": {
            "model": {"source": "builtin://smollm2"},
            "engine": {
                "maxNumSeqs": capacity.max_num_seqs,
                "maxNumBatchedTokens": capacity.max_num_batched_tokens,
                "scheduling": {"policy": config.policy},
            },
            "slo": {
                "ttftP95": _duration(config.targets.ttft),
                "ttftPerThousandTokens": _duration(config.ttft_per_token * 1000),
                "tpotP95": _duration(config.targets.tpot),
            },
            "scaling": {"minReplicas": config.min_replicas, "maxReplicas": config.max_replicas},
            "tuning": {"mode": "Auto" if config.tuning else "Off"},
            "gateway": {**config.gateway.spec, "enabled": config.routing == "gateway"},
        },
    }


def gateway_manifest_of(config: FleetConfig) -> dict[str, Any]:
    """Returns the service with its prefill set, which the operator does not see: no scaler changes that set."""
    manifest = manifest_of(config)
    if config.prefill is not None:
        manifest["spec"]["disaggregation"] = {"mode": config.prefill.mode}
    return manifest


def read_gateway_spec(path: Path) -> dict[str, Any]:
    """Returns `spec.gateway` of an InferenceService in YAML; empty where it has none.

    Raises:
        InputError: the file cannot be read, or is no valid InferenceService.
    """
    try:
        manifest = yaml.safe_load(path.read_text())
        metadata = {"namespace": NAMESPACE, "uid": NAME, **manifest["metadata"]}
        InferenceService.from_dict({**manifest, "metadata": metadata})
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: not an InferenceService: {error}") from error
    return dict(manifest["spec"].get("gateway") or {})


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000, 3):.12g}ms"
