"""What a client says about its turn: class, priority, tenant, salt, prediction."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers

from inflight_engine.scheduling.config import ServiceClass
from inflight_engine.server.errors import bad_request
from inflight_engine.server.fields import SchedulingFields
from inflight_engine.server.generation import Scheduling

TENANT_HEADER = "X-Inflight-Tenant"
MAX_TENANT_LENGTH = 128


def scheduling_of(
    fields: SchedulingFields, headers: Headers, classes: Sequence[ServiceClass], *, trust_tenant_header: bool
) -> Scheduling:
    """With the defaults of its class; a request that names none belongs to the first.

    Args:
        trust_tenant_header: `TENANT_HEADER` says whose request it is; otherwise all are of one tenant, since a client
            could name itself as it likes.

    Raises:
        ApiError: 400, there is no such class or the tenant is not one word of ASCII.
    """
    chosen = _service_class(fields.service_class, classes)
    return Scheduling(
        service_class=chosen.name,
        priority=chosen.priority if fields.priority is None else fields.priority,
        tenant=_tenant(headers) if trust_tenant_header else "",
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


def _tenant(headers: Headers) -> str:
    given = headers.getlist(TENANT_HEADER)
    if not given:
        return ""
    if len(given) > 1 or re.fullmatch(rf"[!-~]{{1,{MAX_TENANT_LENGTH}}}", given[0]) is None:
        raise bad_request(
            f"{TENANT_HEADER}: must be one header of 1 to {MAX_TENANT_LENGTH} visible ASCII characters", TENANT_HEADER
        )
    return given[0]
