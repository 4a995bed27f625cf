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
from inflight_operator.quantities import (
    format_seconds,
    parse_duration,
    parse_quantity,
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
    "format_seconds",
    "model_argument",
    "parse_duration",
    "parse_quantity",
    "served_name",
    "service_url",
    "tuning_bounds",
]
