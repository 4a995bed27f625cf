"""The InferenceService resource: its types, the CRD generated from them, and the resolved defaults of its fields."""

from inflight_operator.api.resolve import model_argument, served_name, service_url, tuning_bounds
from inflight_operator.api.types import (
    Condition,
    Decision,
    InferenceService,
    InferenceServiceSpec,
    InferenceServiceStatus,
    LimitsStatus,
    ObjectMeta,
    ObservedStatus,
)

__all__ = [
    "Condition",
    "Decision",
    "InferenceService",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "LimitsStatus",
    "ObjectMeta",
    "ObservedStatus",
    "model_argument",
    "served_name",
    "service_url",
    "tuning_bounds",
]
