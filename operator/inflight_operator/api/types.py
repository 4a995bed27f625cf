"""The InferenceService itself, and one place to import all API types from."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from inflight_operator.api.base import SpecModel, StatusModel
from inflight_operator.api.engine import Accelerator, Engine, KVCache, Model
from inflight_operator.api.scaling import Behavior, ScaleDownRules, ScaleUpRules, Scaling, ScalingPolicy, Targets
from inflight_operator.api.spec import SLO, InferenceServiceSpec, Rollout, SeqsBounds, TokensBounds, Tuning
from inflight_operator.api.status import (
    MAX_DECISIONS,
    Condition,
    Decision,
    InferenceServiceStatus,
    LimitsStatus,
    ObservedStatus,
)
from inflight_operator.api.template import PodTemplate

GROUP = "inflight.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["inflight.dev/v1alpha1"] = "inflight.dev/v1alpha1"
KIND: Literal["InferenceService"] = "InferenceService"
PLURAL = "inferenceservices"
SHORT_NAME = "ifsvc"
CATEGORY = "inflight"


class ObjectMeta(StatusModel):
    """The parts of `meta/v1` ObjectMeta that the operator reads."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class InferenceService(SpecModel):
    """A large language model served by a fleet of engines whose number and limits the operator keeps right."""

    api_version: Literal["inflight.dev/v1alpha1"] = API_VERSION
    kind: Literal["InferenceService"] = KIND
    metadata: ObjectMeta
    spec: InferenceServiceSpec
    status: InferenceServiceStatus = Field(default_factory=InferenceServiceStatus)

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> InferenceService:
        """From what the API server returns (and kopf passes on).

        Raises:
            pydantic.ValidationError: a field is missing, unknown or of the wrong type; the message names it.
        """
        return cls.model_validate(
            {key: body[key] for key in ("apiVersion", "kind", "metadata", "spec", "status") if key in body}
        )


__all__ = [
    "API_VERSION",
    "CATEGORY",
    "GROUP",
    "KIND",
    "MAX_DECISIONS",
    "PLURAL",
    "SHORT_NAME",
    "SLO",
    "VERSION",
    "Accelerator",
    "Behavior",
    "Condition",
    "Decision",
    "Engine",
    "InferenceService",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "KVCache",
    "LimitsStatus",
    "Model",
    "ObjectMeta",
    "ObservedStatus",
    "PodTemplate",
    "Rollout",
    "ScaleDownRules",
    "ScaleUpRules",
    "Scaling",
    "ScalingPolicy",
    "SeqsBounds",
    "Targets",
    "TokensBounds",
    "Tuning",
]
