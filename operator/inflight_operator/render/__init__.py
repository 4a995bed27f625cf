"""Pure builders of an InferenceService's children, one file for each kind."""

from inflight_operator.render.plan import ChildPlan, EngineObservability, Settings
from inflight_operator.render.service_children import render

__all__ = [
    "ChildPlan",
    "EngineObservability",
    "Settings",
    "render",
]
