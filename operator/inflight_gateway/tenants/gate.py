"""Limits and usage of tenants.

    admitted = gate.admit(view, config, now)       # or a Refusal: 429; None: another pod decides, await `ask`
    gate.pause(admitted), gate.resume(admitted)    # between two attempts the request is not in flight
    gate.progressed(admitted, tokens)              # output tokens so far
    gate.settle(view, admitted, finished)          # its report; `unreported` without one

Everything but `ask` is synchronous.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from inflight_gateway.tenants import answers
from inflight_gateway.tenants.accounts import TenantKey
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.keys import ApiKey, KeyTables, presented_key
from inflight_gateway.tenants.sharing import Grant, SharedLimits
from inflight_gateway.tenants.usage import Counts, Usage
from inflight_gateway.tenants.usage_log import UsageLog
from inflight_gateway.types import Finished, RateLimits, Refusal, RequestView, ServiceConfig

KEYLESS = ApiKey("", "", None)
"""Key of all requests to services without API keys."""


@dataclass(slots=True)
class Admitted:
    """A request's charge, until its report.

    Attributes:
        counts: counters of its tenant, which are no longer exported once the service is deleted.
        headers: for responses: the tenant's limits.
        prompt_tokens: estimated tokens of its prompt.
        free_tokens: tokens of prompt and answer that are not charged: before this picker started.
        in_flight: an attempt is under way.
    """

    grant: Grant
    counts: Counts
    headers: answers.Headers
    prompt_tokens: int
    free_tokens: int = 0
    in_flight: bool = True

    def used(self, prompt_tokens: int, output_tokens: int) -> int:
        """Returns the tokens to charge."""
        return max(0, prompt_tokens + output_tokens - self.free_tokens)


class Gate:
    """The checks.

    Args:
        tables: API keys.
        limits: limits shared between the gateways.
        estimates: estimates of the lengths of answers, shared with the ledger; they learn from requests that end.
        wall: returns the Unix time, for the expiry of keys.

    Attributes:
        usage: collector of the tenants' metrics.
        usage_log: gets each request that is counted; None: usage is not written.
    """

    def __init__(
        self,
        tables: KeyTables,
        limits: SharedLimits,
        estimates: Estimates,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.usage = Usage(lambda: tables.malformed)
        self.usage_log: UsageLog | None = None
        self._estimates = estimates
        self._limits = limits
        self._wall = wall
        self._tables = tables

    def check(self, headers: Mapping[str, str], config: ServiceConfig) -> ApiKey | Refusal:
        """Returns the key of another gateway's request; or 401, or 503 while there are no keys.

        Args:
            headers: headers with names in lower case.
        """
        if not config.keyed:
            return KEYLESS
        if config.api_keys_secret is None:
            return answers.no_key()  # a token, which this gateway has not verified
        given = presented_key(headers.get("authorization", ""), headers.get("api-key", ""))
        key = self._tables.check(given, config, self._wall())
        if isinstance(key, Refusal):
            self.usage.refused(config.key, self.usage.label(config.key, ""), "key")
        return key

    def admit(self, view: RequestView, config: ServiceConfig, now: float) -> Admitted | Refusal | None:
        """Charges a request to its tenant's limits. Returns 429 if it is above them; None: another gateway pod decides,
        see `ask`."""
        grant = self._limits.admit_here(_key(view), _limits(view, config), self._estimates.tokens(view), now)
        return None if grant is None else self._admitted(view, config, grant)

    async def ask(self, view: RequestView, config: ServiceConfig, now: float) -> Admitted | Refusal:
        """Asks the gateway pod that owns the tenant."""
        tokens = self._estimates.tokens(view)
        return self._admitted(view, config, await self._limits.admit(_key(view), _limits(view, config), tokens, now))

    def adopt(self, view: RequestView) -> Admitted:
        """Counts a request that is under way already, whatever the limits: its relay started it, or it began before
        this picker did. Only tokens that follow are charged."""
        counts = self.usage.of(view.service, self.usage.label(view.service, view.tenant))
        counts.in_flight += 1
        grant = self._limits.adopt(_key(view))
        return Admitted(grant, counts, (), view.prompt_tokens, free_tokens=view.prompt_tokens)

    def pause(self, one: Admitted) -> None:
        """Notes that an attempt has ended: the request is not in flight until the next one."""
        if one.in_flight:
            one.in_flight = False
            one.counts.in_flight -= 1
            self._limits.release(one.grant)

    def resume(self, one: Admitted) -> None:
        """Notes that another attempt begins. It is never rejected and not charged."""
        if not one.in_flight:
            one.in_flight = True
            one.counts.in_flight += 1
            self._limits.resume(one.grant)

    def progressed(self, one: Admitted, output_tokens: int) -> None:
        """Charges tokens beyond the estimate. Args: output_tokens: of the answer so far."""
        used = one.used(one.prompt_tokens, output_tokens)
        if used > one.grant.tokens:
            self._limits.settle(one.grant, used)
            one.grant = replace(one.grant, tokens=used)

    def settle(self, view: RequestView, one: Admitted, finished: Finished) -> None:
        """Corrects the charge of a request by its real usage."""
        self.pause(one)
        # The client disconnected in the middle: the prompt was not reported, but an engine has computed it.
        unknown = not finished.prompt_tokens and finished.endpoints and finished.status in (0, 200)
        prompt = one.prompt_tokens if unknown else finished.prompt_tokens
        self._limits.settle(one.grant, one.used(prompt, finished.completion_tokens))
        # 0: not known, of a plain response without usage.
        if finished.status == 200 and finished.completion_tokens > 0:
            self._estimates.learn(view, finished.completion_tokens)
        self._count(one.counts, finished, prompt)

    def unreported(self, one: Admitted, finished: Finished) -> None:
        """Ends a request that no relay reports, because it died: its estimate stands.

        Args:
            finished: the tokens that are known.
        """
        self.pause(one)
        self._count(one.counts, finished, finished.prompt_tokens)

    def count(self, finished: Finished) -> None:
        """Counts a request that was not admitted here: it ran before this picker started, or the relay refused it."""
        label = self.usage.label(finished.service, finished.tenant)
        if finished.status == 401:
            self.usage.refused(finished.service, label, "key")
        elif finished.endpoints:
            self._count(self.usage.of(finished.service, label), finished, finished.prompt_tokens)

    def _count(self, counts: Counts, finished: Finished, prompt_tokens: int) -> None:
        counts.requests += 1
        counts.prompt_tokens += prompt_tokens
        counts.cached_tokens += finished.cached_tokens
        counts.completion_tokens += finished.completion_tokens
        if self.usage_log is not None:
            self.usage_log.add(finished, prompt_tokens)

    def _admitted(self, view: RequestView, config: ServiceConfig, grant: Grant) -> Admitted | Refusal:
        label = self.usage.label(view.service, view.tenant)
        refused_by = grant.verdict.refused_by
        if refused_by is not None:
            self.usage.refused(view.service, label, refused_by)
            return answers.over_limit(config, view.tenant, _limits(view, config), grant.verdict)
        counts = self.usage.of(view.service, label)
        counts.in_flight += 1
        return Admitted(grant, counts, answers.limit_headers(grant.verdict), view.prompt_tokens)


def _key(view: RequestView) -> TenantKey:
    return TenantKey(view.service, view.tenant)


def _limits(view: RequestView, config: ServiceConfig) -> RateLimits:
    return config.tenant(view.tenant).limits
