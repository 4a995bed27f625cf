"""spec.disaggregation: engines that compute prompts for those that answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from inflight_base.manifest.names import LONGEST_NAME, child_names
from inflight_operator.api.base import SpecModel, rule
from inflight_operator.api.engine.fields import Accelerator
from inflight_operator.api.pods.template import PodTemplate


class Prefill(SpecModel):
    """The engines that compute prompts. In all else they are like those of the service."""

    min_replicas: int = Field(default=1, ge=1, le=10000, description="Minimum number of their replicas.")
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Maximum number of their replicas. Default: scaling.maxReplicas.",
    )
    accelerator: Accelerator | None = Field(
        default=None, description="The accelerator of each of their pods. Default: that of the service."
    )
    template: PodTemplate | None = Field(
        default=None,
        description="Parts of their pods, in place of those of the service. Default: those of the service.",
    )


class Disaggregation(SpecModel):
    """Prompts and answers on separate engines. The pods of the service answer; a second InferenceService, NAME-prefill,
    which the operator keeps and scales by its own demand, computes prompts."""

    mode: Literal["Off", "Auto", "Fixed"] = Field(
        default="Off",
        description="Off (in quotes, or YAML reads it as false): engines compute the prompts of their answers. Auto:"
        " prefill engines and the others take requests as one set; where a prefill engine computed the prompt, the"
        " gateway decides by cost whether the answer goes on at one of the others. Fixed: a prefill engine computes"
        " every prompt, while one takes requests, and the others answer.",
    )
    prefill: Prefill = Field(default_factory=Prefill, description="The engines that compute prompts.")


_OFF = "self.disaggregation.mode == 'Off'"
_PREFILL = "self.disaggregation.prefill"
_DISK_VOLUME = "self.engine.kvCache.?disk.?volume"


def _needs(expression: str, message: str, field: str = "mode") -> dict[str, Any]:
    """Returns a rule for services with prefill engines."""
    return rule(f"{_OFF} || {expression}", message, fieldPath=f".disaggregation.{field}")


def disaggregation_rules(has_swap: str) -> list[dict[str, Any]]:
    """Returns the rules of the spec. Args: has_swap: expression for a service with host memory behind its KV cache."""
    return [
        _needs(
            "self.gateway.enabled",
            "disaggregation.mode Auto and Fixed need the gateway, which sends prompts to prefill engines: set"
            " gateway.enabled true",
        ),
        _needs(
            "!self.gateway.inferencePool.enabled",
            "disaggregation.mode Auto and Fixed exclude gateway.inferencePool.enabled: other gateways do not know which"
            " engines compute prompts",
        ),
        _needs(
            "self.engine.type == 'inflight'",
            "disaggregation.mode Auto and Fixed are for engine.type inflight only: others do not hand prompts over",
        ),
        _needs(
            f"({has_swap} && self.engine.kvCache.prefixCaching)",
            "disaggregation.mode Auto and Fixed need engine.kvCache.swap, such as 4Gi, and prefixCaching: engines hand"
            " prompts over as cached blocks in host memory",
        ),
        _needs(
            f"self.accelerator.count <= 1 && {_PREFILL}.?accelerator.?count.orValue(0) <= 1",
            "disaggregation.mode Auto and Fixed are for engines with one accelerator at most: those with several do not"
            " hand prompts over",
        ),
        _needs(
            "self.scaling.minReplicas > 0",
            "disaggregation.mode Auto and Fixed need scaling.minReplicas of 1 or more: prefill engines do not wake a"
            " service that scaled to zero",
        ),
        _needs(
            "!has(self.scaling.sleep)",
            "disaggregation.mode Auto and Fixed exclude scaling.sleep: an engine that sleeps has given back the host"
            " memory through which prompts are handed over",
        ),
        _needs(
            f"{_PREFILL}.?maxReplicas.orValue(self.scaling.maxReplicas) >= {_PREFILL}.minReplicas",
            "disaggregation.prefill.maxReplicas (default: scaling.maxReplicas) must be at least"
            " disaggregation.prefill.minReplicas",
            "prefill",
        ),
        _needs(
            f"!has({_PREFILL}.accelerator) || ({_PREFILL}.accelerator.count > 0) == (self.accelerator.count > 0)",
            "disaggregation.prefill.accelerator.count must be 0 where accelerator.count is, and above 0 where it is"
            " not: CPUs and accelerators do not take each other's blocks",
            "prefill",
        ),
        _needs(
            f"!{_DISK_VOLUME}.hasValue() || !has({_PREFILL}.template) || (has({_PREFILL}.template.volumes)"
            f" && {_PREFILL}.template.volumes.exists(v, v.name == {_DISK_VOLUME}.value()))",
            "disaggregation.prefill.template takes the place of template, so it needs the volume that"
            " engine.kvCache.disk.volume names",
            "prefill",
        ),
    ]


_SUFFIX = child_names("").prefill
_LONGEST = LONGEST_NAME - len(_SUFFIX)

NAME_RULE = rule(
    f"self.spec.?disaggregation.?mode.orValue('Off') == 'Off' || self.metadata.name.size() <= {_LONGEST}",
    f"metadata.name must be at most {_LONGEST} characters with spec.disaggregation.mode Auto or Fixed: its prefill"
    f" engines are the InferenceService NAME{_SUFFIX}",
)
"""Rule of the object, which leaves room for the name of the second one."""
