"""spec.template.topologySpreadConstraints: spreading of pods across topology domains. The operator adds the label
selector."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from inflight_operator.api.base import SpecModel, validation


class TopologySpreadConstraint(SpecModel):
    """One rule of how the service's pods are spread, as in `core/v1` TopologySpreadConstraint."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "template.topologySpreadConstraints.minDomains needs whenUnsatisfiable DoNotSchedule",
        )
    )

    topology_key: Annotated[str, Field(min_length=1, max_length=317)] = Field(
        description="Label of nodes whose values are the parts to spread over, such as topology.kubernetes.io/zone.",
        json_schema_extra=validation(
            r"self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
            "template.topologySpreadConstraints.topologyKey must be the key of a label, such as"
            " topology.kubernetes.io/zone",
        ),
    )
    max_skew: int = Field(
        default=1, ge=1, le=10000, description="Pods that one part may have more than the part with the fewest."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        default="ScheduleAnyway",
        description="ScheduleAnyway: the scheduler prefers an even spread. DoNotSchedule: pods that would exceed"
        " maxSkew stay pending.",
    )
    min_domains: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Parts there should be: with fewer, the smallest part counts as empty. With DoNotSchedule only.",
    )
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="Whether nodes that nodeSelector and affinity exclude are left out of the count. Default: Honor.",
    )
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="Whether nodes with taints that the pods do not tolerate are left out. Default: Ignore.",
    )
    match_label_keys: list[Annotated[str, Field(max_length=317)]] = Field(
        default_factory=list,
        max_length=8,
        description="Labels of pods whose values must be equal to count together; pod-template-hash spreads the pods"
        " of a rollout by themselves.",
    )
