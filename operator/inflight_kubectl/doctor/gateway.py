"""The gateway of services that are behind it, and their API keys."""

from __future__ import annotations

from collections.abc import Iterator

from inflight_kubectl.access.api_keys import keys_secret
from inflight_kubectl.access.api_problems import ApiProblem
from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.key_store import keys_by_secret
from inflight_kubectl.access.resources import Service
from inflight_kubectl.doctor.result import Result, fail, ok, warn
from inflight_kubectl.engines.gateways import behind_gateway, no_gateway, ready_gateways


def check_gateway(cluster: Cluster) -> Iterator[Result]:
    """Checks the gateway; no results if no service is behind it."""
    services = [one for one in cluster.services() if behind_gateway(one)]
    if not services:
        return
    pods = ready_gateways(cluster, services[0])
    if pods:
        yield ok("gateway", f"{len(pods)} ready pod{'s' * (len(pods) != 1)} for {_count(services)}")
    else:
        missing = no_gateway(services[0])
        yield fail("gateway", missing.what, missing.remedy)
    for service in services:
        if keys_secret(service):
            yield from _keys(cluster, service)


def _keys(cluster: Cluster, service: Service) -> Iterator[Result]:
    name = f"API keys of {service.namespace}/{service.name}"
    try:
        ((secret, keys),) = keys_by_secret(cluster, [service]).items()
    except ApiProblem as problem:
        if problem.status != 403:
            raise
        yield warn(name, f"not checked: {problem.what}")
        return
    create = f"kubectl inflight keys create {service.name} --tenant NAME -n {service.namespace}"
    malformed = [one.key_id for one in keys if one.state == "malformed"]
    if not any(one.state == "valid" for one in keys):
        yield fail(name, f"Secret {secret} has no valid key: the gateway refuses all requests", create)
    elif malformed:
        yield warn(name, f"the gateway ignores malformed entries of Secret {secret}: {', '.join(malformed)}", create)
    else:
        yield ok(name, f"{len(keys)} in Secret {secret}")


def _count(services: list[Service]) -> str:
    return f"{len(services)} service{'s' * (len(services) != 1)}"
