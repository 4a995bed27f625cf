"""The operator's decisions, as marks on the panels of a dashboard."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import AnnotationQuery

from deploy.dashboards.panels import DATASOURCE
from deploy.dashboards.queries import ONE_SERVICE, known

LABELS = ("kind", "knob", "from", "to", "reason")
LAST_DECISION = "service_last_decision_timestamp_seconds"


OF_PROMETHEUS: dict[str, object] = {
    "step": "15s",
    "useValueForTime": True,
    "tagKeys": "kind,reason",
    "titleFormat": "{{knob}} {{from}} → {{to}}",
    "textFormat": "{{reason}}",
}
"""Fields of an annotation that only Grafana's Prometheus data source knows (`PromAnnotation` in
`packages/grafana-prometheus/src/types.ts`)."""


class _Decided(AnnotationQuery):
    def to_json(self) -> dict[str, object]:
        return super().to_json() | OF_PROMETHEUS


class Decisions(Builder[AnnotationQuery]):
    """Marks decisions of one kind, at the time that the metric has as its value.

    Args:
        kind: `Scaling` or `Tuning`.
        color: of the marks.
    """

    def __init__(self, kind: str, name: str, color: str) -> None:
        decided = known(LAST_DECISION, f'{ONE_SERVICE}, kind="{kind}"', LABELS)
        self._annotation = _Decided(
            name=name, datasource=DATASOURCE, enable=True, icon_color=color, expr=f"{decided} * 1000"
        )

    def build(self) -> AnnotationQuery:
        return self._annotation


SCALING = Decisions("Scaling", "Replica decisions", "green")
TUNING = Decisions("Tuning", "Limit decisions", "purple")
