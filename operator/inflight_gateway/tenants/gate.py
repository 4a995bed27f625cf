"""Who may send a request, and how much: what the picker asks before a request is picked for or held.

    tenant = gate.check(headers, config, now)          # str, or a Refusal: 401, 503
    answer = await gate.admit(request, config, now)    # headers for the response, or a Refusal: 429; each attempt
    gate.dispatched(request)                           # when it is sent to a replica, where the ledger's `begin` is
    gate.ended(request.request_id)                     # when its ext_proc stream ends; each attempt
    gate.settle(finished)                              # when the relay reports it

Everything but `admit` is synchronous; `admit` waits only where another gateway decides for the tenant.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inflight_gateway.headers import ATTEMPT, REQUEST_ID
from inflight_gateway.tenants import answers
from inflight_gateway.tenants.accounts import TenantKey
from inflight_gateway.tenants.fair import FairShares
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.tenants.sharing import NO_LIMITS, Grant, SharedLimits
from inflight_gateway.tenants.usage import Usage
from inflight_gateway.types import Finished, RateLimits, Refusal, RequestView, ServiceConfig, ServiceKey

REPORT_WAIT_S = 30.0
"""How long after its last attempt a request's report is waited for. Without one (a relay that died, or Envoy's way
around it) its estimate stands."""

_REFUSED = (401, 429)
"""Statuses of this gate's own refusals."""

SecretData = Callable[[str, str], Mapping[str, bytes] | None]
"""(namespace, name) -> the decoded entries of a Secret; None: there is none, or it was not read yet."""


@dataclass(slots=True)
class _Admitted:
    """A request between its admission and its report.

    Attributes:
        expected_output: output tokens that it was charged for.
        sent: whether it was counted in the fair shares.
        open: attempts under way.
    """

    grant: Grant
    service: ServiceKey
    tenant: str
    label: str
    weight: float
    prompt_tokens: int
    expected_output: int
    headers: answers.Headers
    sent: bool = False
    open: int = 1


class Gate:
    """Args:
    secret_data: of the catalog.
    limits: shared between the gateways.
    wall: Unix time, for the expiry of keys.

    Attributes:
        fair: `fair.served(service, tenant)` orders the tenants of a `HoldQueue`.
        usage: a collector of metrics.
    """

    def __init__(self, secret_data: SecretData, limits: SharedLimits, *, wall: Callable[[], float] = time.time) -> None:
        self.fair = FairShares()
        self.usage = Usage()
        self._secret_data = secret_data
        self._limits = limits
        self._wall = wall
        self._tables = KeyTables()
        self._admitted: dict[str, list[_Admitted]] = {}
        """By request id, which is the client's own: two requests may have the same."""
        self._unreported: deque[tuple[float, str, _Admitted]] = deque()
        """Those whose attempts have all ended, and when the wait for their report is over."""

    def check(self, headers: Mapping[str, str], config: ServiceConfig, now: float) -> str | Refusal:
        """The tenant of a request, `""` at services without API keys; or 401, or 503 while there are no keys.

        Args:
            headers: with names in lower case.
        """
        if config.api_keys_secret is None:
            return ""
        # A key that was revoked since then does not cut an answer that goes on at another replica.
        running = self._admitted.get(headers.get(REQUEST_ID, "")) if headers.get(ATTEMPT, "1") != "1" else None
        if running:
            return running[0].tenant
        namespace, name = config.key.namespace, config.api_keys_secret
        table = self._tables.table(namespace, name, self._secret_data(namespace, name))
        self.usage.malformed_keys = self._tables.malformed
        if table is None:
            return self._refused(config, answers.no_keys(config))
        given = presented_key(headers)
        if not given:
            return self._refused(config, answers.no_key())
        key = table.find(given)
        if key is None:
            return self._refused(config, answers.wrong_key())
        if key.expires is not None and self._wall() >= key.expires:
            return self._refused(config, answers.expired_key(key.key_id))
        return key.tenant

    async def admit(self, request: RequestView, config: ServiceConfig, now: float) -> Refusal | answers.Headers:
        """Charges a request to its tenant's limits.

        Returns:
            Headers for the response, or 429. Later attempts are never refused and cost nothing.
        """
        self._forget_unreported(now)
        if request.attempt > 1:
            return await self._again(request, config, now)
        limits, weight = of_tenant(config, request.tenant)
        key = TenantKey(request.service, request.tenant)
        label = self._label(config, request.tenant)
        output = request.max_tokens if request.max_tokens is not None else self.fair.expected_output(key)
        grant = await self._limits.admit(key, limits, request.prompt_tokens + output, now)
        if grant.verdict.refused_by is not None:
            self.usage.refused(request.service, label, grant.verdict.refused_by)
            return answers.over_limit(config, request.tenant, limits, grant.verdict)
        headers = answers.limit_headers(grant.verdict)
        self._keep(request, _Admitted(grant, *key, label, weight, request.prompt_tokens, output, headers))
        return headers

    def dispatched(self, request: RequestView) -> None:
        """The request is sent to a replica: its tenant is served what it is expected to cost."""
        for one in self._admitted.get(request.request_id, ()):
            if not one.sent and one.service == request.service:
                one.sent = True
                self.fair.add(one.grant.key, one.prompt_tokens, one.expected_output, one.weight)
                return

    def ended(self, request_id: str, now: float | None = None) -> None:
        """An attempt's stream ended. The request is not in flight until it has another one."""
        for one in self._admitted.get(request_id, ()):
            if one.open:
                one.open -= 1
                if not one.open:
                    self._not_in_flight(one)
                    until = (time.monotonic() if now is None else now) + REPORT_WAIT_S
                    self._unreported.append((until, request_id, one))
                return

    def settle(self, finished: Finished) -> None:
        """Corrects what a request was charged by what it used."""
        if finished.status in _REFUSED and not finished.endpoints:
            return  # it was never admitted; another request with its id may be
        one = self._of(finished.request_id, finished.service)
        if one is None:
            return
        self._remove(finished.request_id, one)
        if one.open:
            one.open = 0
            self._not_in_flight(one)
        # A client that left in the middle: nobody counted the prompt, and an engine has computed it.
        unknown = not finished.prompt_tokens and finished.endpoints and finished.status in (0, 200)
        prompt = one.prompt_tokens if unknown else finished.prompt_tokens
        self._limits.settle(one.grant, prompt + finished.completion_tokens)
        if one.sent:
            self.fair.add(
                one.grant.key,
                prompt - one.prompt_tokens,
                finished.completion_tokens - one.expected_output,
                one.weight,
            )
        self.fair.left(one.grant.key, finished.completion_tokens if finished.status == 200 else None)
        counts = self.usage.of(one.service, one.label)
        counts.requests += 1
        counts.prompt_tokens += prompt
        counts.cached_tokens += finished.cached_tokens
        counts.completion_tokens += finished.completion_tokens

    async def _again(self, request: RequestView, config: ServiceConfig, now: float) -> answers.Headers:
        known = next(
            (one for one in self._admitted.get(request.request_id, ()) if one.service == request.service), None
        )
        if known is not None:
            if not known.open:
                self._limits.resume(known.grant)
                self.usage.of(known.service, known.label).in_flight += 1
            known.open += 1
            return known.headers
        # This picker was restarted since the first attempt: what the answer still costs is charged when it ends.
        key = TenantKey(request.service, request.tenant)
        grant = await self._limits.admit(key, NO_LIMITS, 0, now)
        weight, label = of_tenant(config, request.tenant)[1], self._label(config, request.tenant)
        self._keep(request, _Admitted(grant, *key, label, weight, 0, 0, ()))
        return ()

    def _of(self, request_id: str, service: ServiceKey) -> _Admitted | None:
        return next((one for one in self._admitted.get(request_id, ()) if one.service == service), None)

    def _keep(self, request: RequestView, one: _Admitted) -> None:
        self._admitted.setdefault(request.request_id, []).append(one)
        self.fair.came(one.grant.key)
        self.usage.of(one.service, one.label).in_flight += 1

    def _not_in_flight(self, one: _Admitted) -> None:
        self._limits.release(one.grant)
        self.usage.of(one.service, one.label).in_flight -= 1

    def _remove(self, request_id: str, one: _Admitted) -> None:
        others = [other for other in self._admitted[request_id] if other is not one]
        if others:
            self._admitted[request_id] = others
        else:
            del self._admitted[request_id]

    def _forget_unreported(self, now: float) -> None:
        while self._unreported and self._unreported[0][0] <= now:
            _, request_id, one = self._unreported.popleft()
            if not one.open and any(other is one for other in self._admitted.get(request_id, ())):
                self._remove(request_id, one)
                self.fair.left(one.grant.key, None)
                self.usage.of(one.service, one.label).requests += 1

    def _label(self, config: ServiceConfig, tenant: str) -> str:
        name = config.api_keys_secret
        data = self._secret_data(config.key.namespace, name) if name is not None else None
        table = self._tables.table(config.key.namespace, name, data) if name is not None else None
        return self.usage.label(config, tenant, table.tenants if table is not None else ())

    def _refused(self, config: ServiceConfig, refusal: Refusal) -> Refusal:
        self.usage.refused(config.key, self.usage.label(config, "", ()), "key")
        return refusal


def presented_key(headers: Mapping[str, str]) -> str:
    """The API key of a request: the Bearer token (RFC 6750), else the header `api-key`; empty without one."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("api-key", "").strip()


def of_tenant(config: ServiceConfig, tenant: str) -> tuple[RateLimits, float]:
    """Limits and weight of a tenant: its own entry in the spec, else the default limits and weight 1."""
    for one in config.tenants:
        if one.name == tenant:
            return one.limits, one.weight
    return config.default_limits, 1.0
