"""Pure builders of an InferenceService's children, one file for each kind."""

from inflight_operator.render.plan import VLLM_IMAGE, ChildPlan, EngineObservability, Settings
from inflight_operator.render.service_children import render

__all__ = [
    "VLLM_IMAGE",
    "ChildPlan",
    "EngineObservability",
    "Settings",
    "render",
]
