"""Grammars of requests on their way to the process that validates them, one after the other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TypeAlias

from inflight_contract.errors import ApiError, bad_request
from inflight_engine.grammars.checking import CHECKER
from inflight_engine.grammars.compiled import GrammarError
from inflight_engine.grammars.sources import Source
from inflight_engine.server.bodies.grammar_fields import INVALID

MAX_WAITING = 128
"""Grammars of one tenant that wait; each takes a millisecond, and a hostile one up to 2 s."""

_MAX_VALID = 128
"""Latest grammars that are known to be valid."""

_Key: TypeAlias = tuple[str, bool]


class CheckedGrammars:
    """Validates grammars, those of tenants in turns; of the latest valid ones that is known."""

    def __init__(self) -> None:
        self._valid: OrderedDict[_Key, str] = OrderedDict()
        self._checks: dict[_Key, asyncio.Task[str]] = {}
        """Checks that wait or run. Requests with the same grammar share one."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By tenant, the next in turn first."""
        self._busy = False

    async def check(self, source: Source, tenant: str) -> str:
        """The grammar for the engine, serialized.

        Raises:
            ApiError: 400, it cannot be followed; 503, too many wait.
        """
        key = source.text, source.written
        text = self._valid.get(key)
        if text is None:
            check = self._checks.get(key)
            if check is None:
                if len(self._waiting.get(tenant, ())) >= MAX_WAITING:
                    message = f"{MAX_WAITING} grammars wait to be validated; try again"
                    raise ApiError(503, message, code="grammar_queue_full", retry_after=1.0)
                check = self._checks[key] = asyncio.ensure_future(self._check(source, tenant))
                check.add_done_callback(lambda done: self._checks.pop(key))
            try:
                text = await asyncio.shield(check)
            except GrammarError as error:
                raise bad_request(str(error), source.field.partition(".")[0], INVALID) from None
        self._valid[key] = text
        self._valid.move_to_end(key)
        if len(self._valid) > _MAX_VALID:
            self._valid.popitem(last=False)
        return text

    async def _check(self, source: Source, tenant: str) -> str:
        if self._busy:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            await turn
        self._busy = True
        try:
            return await CHECKER.check(source)
        finally:
            self._next()

    def _next(self) -> None:
        """Give the turn to the first of the next tenant."""
        self._busy = bool(self._waiting)
        if self._busy:
            tenant, turns = self._waiting.popitem(last=False)
            turns.popleft().set_result(None)
            if turns:
                self._waiting[tenant] = turns
