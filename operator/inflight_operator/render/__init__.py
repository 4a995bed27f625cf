"""Pure builders of an InferenceService's children, one file for each kind."""

from inflight_operator.render.labels import child_names, pod_labels, selector_string
from inflight_operator.render.plan import ChildPlan, EngineObservability, Manifest, Settings
from inflight_operator.render.service_children import render

__all__ = [
    "ChildPlan",
    "EngineObservability",
    "Manifest",
    "Settings",
    "child_names",
    "pod_labels",
    "render",
    "selector_string",
]
