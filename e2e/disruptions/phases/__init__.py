"""All phases, in the order in which they run. A new one is a class in one of the files here, and a line below."""

from __future__ import annotations

from e2e.disruptions.phases.base import Phase
from e2e.disruptions.phases.cluster import ApiServerStopped, GatewayDrained, NodeDrained
from e2e.disruptions.phases.gateway import GatewayDeleted, GatewayKilled, GatewayRolled, PickerKilled
from e2e.disruptions.phases.metrics import MetricsPageHangs, MetricsPageHuge
from e2e.disruptions.phases.operator import OperatorKilled, OperatorUpgraded
from e2e.disruptions.phases.pods import EngineKilled, PodDeleted, PodHung, PodKilled
from e2e.disruptions.phases.spec import (
    LimitsChanged,
    RolloutReleaseFirst,
    RolloutSurgeFirst,
    ScaleIn,
    ScaleOut,
    Steady,
)

_ORDER: tuple[type[Phase], ...] = (
    Steady,
    ScaleOut,
    ScaleIn,
    RolloutSurgeFirst,
    RolloutReleaseFirst,
    OperatorUpgraded,
    OperatorKilled,
    ApiServerStopped,
    NodeDrained,
    LimitsChanged,
    PodDeleted,
    EngineKilled,
    PodKilled,
    PodHung,
    MetricsPageHangs,
    MetricsPageHuge,
    GatewayDeleted,
    GatewayRolled,
    GatewayDrained,
    PickerKilled,
    GatewayKilled,
)

PHASES: dict[str, type[Phase]] = {phase.name: phase for phase in _ORDER}
"""By name."""

IN_MAKE_TEST = (OperatorKilled.name, PodDeleted.name, EngineKilled.name, PodHung.name)
"""Those that `make test` runs: the most telling ones within 4 minutes. Scenarios have a rollout under traffic."""

IN_MAKE_TEST_WITH_GATEWAY = (GatewayRolled.name, GatewayKilled.name)
"""Those that `make test` runs against a service behind the gateway. Its scenarios kill and hang engines."""

__all__ = ["IN_MAKE_TEST", "IN_MAKE_TEST_WITH_GATEWAY", "PHASES", "Phase"]
