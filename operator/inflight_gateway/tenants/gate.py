"""Limits and usage of tenants.

admitted = gate.admit(view, config, now)       # or a Refusal: 429
gate.pause(admitted), gate.resume(admitted)    # between two attempts the request is not in flight
gate.progressed(admitted, tokens)              # output tokens so far
gate.settle(view, admitted, finished)          # its report; `unreported` without one
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inflight_gateway.tenants import answers
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.keys import ApiKey, KeyTables, presented_key
from inflight_gateway.tenants.limits import Accounts, TenantKey, charge_for, share
from inflight_gateway.tenants.usage import Counts, Usage
from inflight_gateway.tenants.usage_log import UsageLog
from inflight_gateway.types import Finished, Refusal, RequestView, ServiceConfig

KEYLESS = ApiKey("", "", None)
"""Key of all requests to services without API keys."""


@dataclass(slots=True)
class Admitted:
    """A request's charge, until its report.

    Attributes:
        charged, slot: tokens charged so far, and their slot in the account.
        counts: counters of its tenant, which are no longer exported once the service is deleted.
        headers: for responses: the tenant's limits.
        prompt_tokens: estimated tokens of its prompt.
        free_tokens: tokens of prompt and answer that are not charged here: before this picker knew of the request.
        in_flight: an attempt is under way.
    """

    key: TenantKey
    charged: int
    slot: int
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
        estimates: estimates of the lengths of answers, shared with the ledger; they learn from requests that end.
        clock: seconds, monotonic. wall: returns the Unix time, for the expiry of keys.

    Attributes:
        usage: collector of the tenants' metrics.
        usage_log: gets each request that is counted; None: usage is not written.
    """

    def __init__(
        self,
        tables: KeyTables,
        estimates: Estimates,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.usage = Usage(lambda: tables.malformed)
        self.usage_log: UsageLog | None = None
        self._estimates = estimates
        self._accounts = Accounts()
        self._clock = clock
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
        key = self._tables.check(presented_key(headers), config, self._wall())
        if isinstance(key, Refusal):
            self.usage.refused(config.key, self.usage.label(config.key, ""), "key")
        return key

    def admit(
        self, view: RequestView, config: ServiceConfig, now: float, *, always: bool = False, among: int = 1
    ) -> Admitted | Refusal:
        """Charges a request to its tenant's limits; returns 429 if it is above them.

        Args:
            always: it is admitted whatever the limits.
            among: pickers that decide alone, each on its share of the limits.
        """
        limits, label = config.tenant(view.tenant).limits, self.usage.label(view.service, view.tenant)
        limits = limits if among == 1 else share(limits, among)
        key, tokens = _key(view), charge_for(self._estimates.tokens(view), limits)
        self._accounts.sweep(now)
        verdict = self._accounts[key].admit(limits, tokens, now, always=always)
        if verdict.refused_by is not None:
            self.usage.refused(view.service, label, verdict.refused_by)
            return answers.over_limit(config, view.tenant, limits, verdict)
        counts = self.usage.of(view.service, label)
        counts.in_flight += 1
        headers = answers.limit_headers(verdict)
        return Admitted(key, tokens, verdict.slot, counts, headers, view.prompt_tokens)

    def adopt(self, view: RequestView, tokens: int = 0) -> Admitted:
        """Counts a request that is under way already, whatever the limits: its relay started it, or asked another
        picker for it. Only tokens that follow are charged. Args: tokens: output tokens so far."""
        key, counts = _key(view), self.usage.of(view.service, self.usage.label(view.service, view.tenant))
        counts.in_flight += 1
        self._accounts[key].in_flight += 1
        return Admitted(key, 0, 0, counts, (), view.prompt_tokens, free_tokens=view.prompt_tokens + tokens)

    def pause(self, one: Admitted) -> None:
        """Notes that an attempt has ended: the request is not in flight until the next one."""
        if one.in_flight:
            one.in_flight = False
            one.counts.in_flight -= 1
            self._accounts[one.key].in_flight -= 1

    def resume(self, one: Admitted) -> None:
        """Notes that another attempt begins. It is never rejected and not charged."""
        if not one.in_flight:
            one.in_flight = True
            one.counts.in_flight += 1
            self._accounts[one.key].in_flight += 1

    def refund(self, one: Admitted) -> None:
        """Takes back the whole charge of a request that another picker admits."""
        self._accounts[one.key].refund(one.charged, one.slot)

    def progressed(self, one: Admitted, output_tokens: int) -> None:
        """Charges tokens beyond the estimate. Args: output_tokens: of the answer so far."""
        used = one.used(one.prompt_tokens, output_tokens)
        if used > one.charged:
            self._settle(one, used)

    def settle(self, view: RequestView, one: Admitted, finished: Finished) -> None:
        """Corrects the charge of a request by its real usage."""
        self.pause(one)
        # The client disconnected in the middle: the prompt was not reported, but an engine has computed it.
        unknown = not finished.prompt_tokens and finished.endpoints and finished.status in (0, 200)
        prompt = one.prompt_tokens if unknown else finished.prompt_tokens
        self._settle(one, one.used(prompt, finished.completion_tokens))
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

    def _settle(self, one: Admitted, used: int) -> None:
        self._accounts[one.key].settle(one.charged, used, one.slot, self._clock())
        one.charged = used


def _key(view: RequestView) -> TenantKey:
    return TenantKey(view.service, view.tenant)
