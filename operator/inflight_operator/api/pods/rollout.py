"""spec.rollout: replacement of pods."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from inflight_base.manifest.units import SHARE_PATTERN, parse_share
from inflight_operator.api.base import SpecModel, rule, validation
from inflight_operator.api.duration import Duration, duration_field
from inflight_operator.api.pods.template import INT_OR_STRING
from inflight_operator.api.setting import setting_duration

WAVE = "10%"
"""Share of the replicas that a rollout or a node drain replaces at a time, unless the spec says otherwise."""


def _readable(share: str | int) -> str | int:
    parse_share(share)
    return share


def _share_field(name: str, description: str) -> Any:
    return Field(
        default=None,
        description=description,
        json_schema_extra={
            **INT_OR_STRING,
            "maxLength": 5,
            **validation(
                f"type(self) == int ? (self >= 0 && self <= 10000) : self.matches('{SHARE_PATTERN}')",
                f"rollout.{name} must be a number of pods from 0 to 10000, or a percentage of the replicas from 0% to"
                " 100%, such as 10%",
            ),
        },
    )


Pods = Annotated[str | int, AfterValidator(_readable)]
"""A number of pods, or a percentage of the replicas."""


class Rollout(SpecModel):
    """Replacement of pods."""

    strategy: Literal["SurgeFirst", "ReleaseFirst"] = Field(
        default="SurgeFirst",
        description="SurgeFirst: new pods are Ready before old pods are removed. ReleaseFirst: old pods are removed"
        " first, for clusters without free accelerators for additional pods.",
    )
    max_surge: Pods | None = _share_field(
        "maxSurge",
        "Pods that may exist beyond the replicas during a rollout: a number, or a percentage of the replicas, rounded"
        f" up. Default: {WAVE} with SurgeFirst, which needs one at least; 0 with ReleaseFirst.",
    )
    max_unavailable: Pods | None = _share_field(
        "maxUnavailable",
        "Replicas that may be missing during a rollout: a number, or a percentage of the replicas, rounded down, but"
        f" at least one pod where a rollout could not move otherwise. Default: 0 with SurgeFirst; {WAVE} with"
        " ReleaseFirst, which needs one at least. Node drains evict as many pods at a time, rounded up, and"
        f" {WAVE} where this is 0.",
    )
    release_after: Duration | None = duration_field(
        "rollout.releaseAfter",
        "With SurgeFirst: time without progress after which a rollout whose additional pods get no node removes old"
        " pods first, as ReleaseFirst does, until it is complete. Unset: it waits for a node.",
        None,
        ("10s", "24h"),
    )
    drain_timeout: Duration = setting_duration(
        "drain_timeout",
        "rollout.drainTimeout",
        "Time in which a pod that is being removed may finish its requests in flight.",
    )
    startup_timeout: Duration = duration_field(
        "rollout.startupTimeout",
        "Time from the start of an engine's container until it must be Ready, the model's download included. After it,"
        " the container is restarted.",
        "30m",
        ("10s", "24h"),
    )


def _is_zero(field: str) -> str:
    share = f"self.rollout.{field}"
    return f"(has({share}) && (type({share}) == int ? {share} == 0 : {share} == '0%'))"


ROLLOUT_RULES = (
    rule(
        f"self.rollout.strategy != 'SurgeFirst' || !{_is_zero('maxSurge')}",
        "rollout.maxSurge 0 needs rollout.strategy ReleaseFirst: SurgeFirst starts new pods before it removes old ones",
        fieldPath=".rollout.maxSurge",
    ),
    rule(
        f"self.rollout.strategy != 'ReleaseFirst' || !{_is_zero('maxUnavailable')}",
        "rollout.maxUnavailable 0 needs rollout.strategy SurgeFirst: ReleaseFirst removes old pods before it starts new"
        " ones",
        fieldPath=".rollout.maxUnavailable",
    ),
    rule(
        "self.rollout.strategy == 'SurgeFirst' || !has(self.rollout.releaseAfter)",
        "rollout.releaseAfter needs rollout.strategy SurgeFirst: ReleaseFirst removes old pods first in any case",
        fieldPath=".rollout.releaseAfter",
    ),
)
"""Rules of the spec, which read fields of `Rollout` after the API server has filled in their defaults."""
