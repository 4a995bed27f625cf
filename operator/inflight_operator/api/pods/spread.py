"""spec.template.topologySpreadConstraints: spreading of pods across topology domains. The operator adds the label
selector."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from inflight_operator.api.base import SpecModel, validation


class TopologySpreadConstraint(SpecModel):
    """Rule for spreading the service's pods, as in `core/v1` TopologySpreadConstraint."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "template.topologySpreadConstraints.minDomains needs whenUnsatisfiable DoNotSchedule",
        )
    )

    topology_key: Annotated[str, Field(min_length=1, max_length=317)] = Field(
        description="Node label whose values are the domains to spread over, such as topology.kubernetes.io/zone.",
        json_schema_extra=validation(
            r"self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
            "template.topologySpreadConstraints.topologyKey must be the key of a label, such as"
            " topology.kubernetes.io/zone",
        ),
    )
    max_skew: int = Field(
        default=1,
        ge=1,
        le=10000,
        description="Maximum difference between the number of pods of a domain and that of the smallest domain.",
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
        description="Minimum number of domains: with fewer, the smallest domain counts as empty. Only with"
        " DoNotSchedule.",
    )
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="Honor: only nodes that match nodeSelector and affinity count. Ignore: all nodes count. Default:"
        " Honor.",
    )
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="Honor: nodes with taints that the pods do not tolerate do not count. Ignore: they count. Default:"
        " Ignore.",
    )
    match_label_keys: list[Annotated[str, Field(max_length=317)]] = Field(
        default_factory=list,
        max_length=8,
        description="Pod labels: only pods with equal values of these labels count together. pod-template-hash spreads"
        " the pods of each rollout separately.",
    )
