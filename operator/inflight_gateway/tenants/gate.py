"""Authentication and rate limits: the checks before a request is picked or held.

    tenant = gate.check(headers, config)               # str, or a Refusal: 401, 503
    answer = await gate.admit(request, config, now)    # headers for the response, or a Refusal: 429; each attempt
    gate.ended(request.request_id)                     # when its ext_proc stream ends; each attempt
    gate.settle(finished)                              # when the relay reports it

Everything but `admit` is synchronous; `admit` waits only if another gateway owns the tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.request.headers import ATTEMPT, OWN_REQUEST_ID
from inflight_gateway.request.paths import GENERATING
from inflight_gateway.tenants import answers
from inflight_gateway.tenants.accounts import TenantKey
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.keys import KeyTables, presented_key
from inflight_gateway.tenants.sharing import Grant, SharedLimits
from inflight_gateway.tenants.usage import Counts, Usage
from inflight_gateway.timers import Timers
from inflight_gateway.types import Finished, Refusal, RequestView, ServiceConfig

REPORT_WAIT_S = 30.0
"""Maximum wait for a request's report after its last attempt. Without one (a relay that died, or Envoy's way
around it) its estimate stands."""


@dataclass(slots=True)
class _Admitted:
    """State of a request between its admission and its report.

    Attributes:
        counts: counters of its tenant, which are no longer exported once the service is deleted.
        open: attempts in flight.
    """

    request: RequestView
    grant: Grant
    counts: Counts
    headers: answers.Headers
    open: int = 1

    @property
    def service(self) -> ServiceKey:
        return self.request.service


class Gate:
    """The checks.

    Args:
        keys: API keys of the catalog's Secrets.
        limits: limits shared between the gateways.
        estimates: estimates of the lengths of answers, shared with the ledger; they learn from requests that end.
        wall: returns the Unix time, for the expiry of keys.

    Attributes:
        usage: collector of the tenants' metrics.
    """

    def __init__(
        self,
        keys: KeyTables,
        limits: SharedLimits,
        estimates: Estimates,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.usage = Usage()
        self._estimates = estimates
        self._keys = keys
        self._limits = limits
        self._wall = wall
        self._admitted: dict[str, _Admitted] = {}
        """Admitted requests by request id, which is the gateway's own."""
        self._unreported: Timers[str] = Timers(REPORT_WAIT_S)
        """Ids of admitted requests whose attempts have all ended."""

    def check(self, headers: Mapping[str, str], config: ServiceConfig) -> str | Refusal:
        """Returns the tenant of a request, `""` at services without API keys; or 401, or 503 while there are no keys.

        Args:
            headers: headers with names in lower case.
        """
        if config.api_keys_secret is None:
            return ""
        # A key revoked in the meantime does not abort a response that continues at another replica.
        running = self._admitted.get(headers.get(OWN_REQUEST_ID, "")) if headers.get(ATTEMPT, "1") != "1" else None
        if running is not None and running.service == config.key:
            return running.request.tenant
        found = self._find(headers, config)
        return self._refused(config, found) if isinstance(found, Refusal) else found

    def check_before_body(self, headers: Mapping[str, str], configs: Collection[ServiceConfig]) -> Refusal | None:
        """Returns a 401 if none of these services, one of which the request is for, accepts its key. A service without
        readable keys is no reason for a 401. The 401 counts for the service if there is only one."""
        refusal = None
        for config in configs:
            if config.api_keys_secret is None:
                return None
            found = self._find(headers, config)
            if not isinstance(found, Refusal):
                return None
            if found.status == 401:
                refusal = found
        if refusal is not None and len(configs) == 1:
            self._refused(config, refusal)
        return refusal

    async def admit(self, request: RequestView, config: ServiceConfig, now: float) -> Refusal | answers.Headers:
        """Charges a request to its tenant's limits.

        Returns:
            Headers for the response, or 429. Later attempts of an admitted request are never rejected and not charged.
        """
        self._forget_unreported(now)
        # Later attempts are unknown after a restart of the picker.
        known = self._admitted.get(request.request_id)
        if known is not None:
            return self._again(known)
        limits = config.tenant(request.tenant).limits
        key = TenantKey(request.service, request.tenant)
        label = self._label(config, request.tenant)
        grant = await self._limits.admit(key, limits, self._estimates.tokens(request), now)
        if grant.verdict.refused_by is not None:
            self.usage.refused(request.service, label, grant.verdict.refused_by)
            return answers.over_limit(config, request.tenant, limits, grant.verdict)
        headers = answers.limit_headers(grant.verdict)
        counts = self.usage.of(request.service, label)
        counts.in_flight += 1
        self._admitted[request.request_id] = _Admitted(request, grant, counts, headers)
        return headers

    def ended(self, request_id: str, now: float | None = None) -> None:
        """Notes that an attempt's stream ended. The request is not in flight until its next attempt."""
        one = self._admitted.get(request_id)
        if one is None or not one.open:
            return
        one.open -= 1
        if not one.open:
            self._not_in_flight(one)
            self._unreported.begin(request_id, time.monotonic() if now is None else now)

    def settle(self, finished: Finished) -> None:
        """Corrects the charge of a request by its real usage."""
        one = self._admitted.pop(finished.request_id, None)
        if one is None:
            return
        self._unreported.stop(finished.request_id)
        if one.open:
            one.open = 0
            self._not_in_flight(one)
        # The client disconnected in the middle: the prompt was not reported, but an engine has computed it.
        generating = one.request.path in GENERATING
        unknown = generating and not finished.prompt_tokens and finished.endpoints and finished.status in (0, 200)
        prompt = one.request.prompt_tokens if unknown else finished.prompt_tokens
        self._limits.settle(one.grant, prompt + finished.completion_tokens)
        # 0: not known, of a plain response without usage.
        if finished.status == 200 and finished.completion_tokens > 0:
            self._estimates.learn(one.request, finished.completion_tokens)
        one.counts.requests += 1
        one.counts.prompt_tokens += prompt
        one.counts.cached_tokens += finished.cached_tokens
        one.counts.completion_tokens += finished.completion_tokens

    def _again(self, known: _Admitted) -> answers.Headers:
        if not known.open:
            self._unreported.stop(known.request.request_id)
            self._limits.resume(known.grant)
            known.counts.in_flight += 1
        known.open += 1
        return known.headers

    def _not_in_flight(self, one: _Admitted) -> None:
        self._limits.release(one.grant)
        one.counts.in_flight -= 1

    def _forget_unreported(self, now: float) -> None:
        for request_id in self._unreported.expire(now):
            self._admitted.pop(request_id).counts.requests += 1

    def _label(self, config: ServiceConfig, tenant: str) -> str:
        return self.usage.label(config, tenant, self._keys.tenants(config))

    def _find(self, headers: Mapping[str, str], config: ServiceConfig) -> str | Refusal:
        """Returns the tenant of the presented key."""
        self.usage.malformed_keys = self._keys.malformed
        given = presented_key(headers.get("authorization", ""), headers.get("api-key", ""))
        found = self._keys.check(given, config, self._wall())
        return found if isinstance(found, Refusal) else found.tenant

    def _refused(self, config: ServiceConfig, refusal: Refusal) -> Refusal:
        self.usage.refused(config.key, self.usage.label(config, "", ()), "key")
        return refusal
