"""A gateway pod's load as the operator reads it from the pod's state stream."""

from __future__ import annotations

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.state.load import Loads, ServiceLoad
from inflight_operator.observe.gateway_lines import read_line
from inflight_operator.observe.gateway_view import GatewayReport


def gateway_report(service: ServiceKey, load: ServiceLoad, now: float, since: float = 0.0) -> GatewayReport:
    """Returns the report on a service: the real line, written by the gateway and read by the operator.

    Args:
        load: from the pod's hold queue, ledger and `DemandCounters`.
        now: seconds of the simulation. since: when the pod started.
    """
    _, reports = read_line(Loads({service: load}, {}).line("", full=True), now, since)
    return reports[service]
