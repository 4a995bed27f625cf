"""The condition InferencePool: whether other gateways can use the service, and which ones do."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_operator.decide.conditions import Finding
from inflight_operator.decide.decision import Reason
from inflight_operator.decide.sentences import sentence
from inflight_operator.observe.pool_view import PoolParent


def pool_condition(*, gateway: bool, picker: bool, api: bool, parents: Sequence[PoolParent]) -> Finding:
    """For a service that enables gateway.inferencePool.

    Args:
        gateway: the operator runs with a gateway. picker: that gateway serves other gateways.
        api: the cluster has InferencePools.
        parents: gateways that report on the pool.
    """
    refused = next((one for one in parents if one.complaint), None)
    if not gateway:
        reason = Reason("NoGateway")
    elif not picker:
        reason = Reason("NoEndpointPicker")
    elif not api:
        reason = Reason("NoInferencePoolApi")
    elif refused is not None:
        reason = Reason("PoolRefused", {"who": refused.name, "said": refused.complaint})
    elif parents:
        reason = Reason("PoolInUse", {"who": ", ".join(one.name for one in parents)})
    else:
        reason = Reason("PoolNotReferenced")
    works = reason.code in ("PoolInUse", "PoolNotReferenced")
    return Finding("InferencePool", "True" if works else "False", reason.code, sentence(reason))
