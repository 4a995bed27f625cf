"""Scheduling fields of a request: class, priority, salt, prediction."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_engine.server.errors import bad_request
from inflight_engine.server.requests.fields import SchedulingFields
from inflight_engine.server.requests.generation import Scheduling
from inflight_settings.scheduling import ServiceClass


def scheduling_of(fields: SchedulingFields, classes: Sequence[ServiceClass], tenant: str) -> Scheduling:
    """With the defaults of its class; a request that names none belongs to the first.

    Args:
        tenant: of the request (`Tenants.of`).

    Raises:
        ApiError: 400, the class does not exist.
    """
    chosen = _service_class(fields.service_class, classes)
    return Scheduling(
        service_class=chosen.name,
        priority=chosen.priority if fields.priority is None else fields.priority,
        tenant=tenant,
        cache_salt=fields.cache_salt or "",
        predicted_tokens=fields.expected_output_tokens,
    )


def _service_class(name: str | None, classes: Sequence[ServiceClass]) -> ServiceClass:
    if name is None:
        return classes[0]
    for service_class in classes:
        if service_class.name == name:
            return service_class
    known = ", ".join(service_class.name for service_class in classes)
    raise bad_request(f"class: there is no class {name!r}; this server has: {known}", "class")
