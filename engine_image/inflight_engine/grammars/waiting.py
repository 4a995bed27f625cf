"""Requests that wait until their grammar is compiled, on a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from inflight_engine.grammars.compiled import GrammarError, Grammars
from inflight_engine.grammars.matching import Matching
from inflight_engine.request import Request


class CompiledRequest(NamedTuple):
    """A request whose grammar was compiled.

    Attributes:
        complete: nothing can follow the tokens that it came with.
        error: why it cannot start; empty: it can.
    """

    request: Request
    complete: bool = False
    error: str = ""


class CompilingRequests:
    """Requests in the order in which they came.

    Args:
        wake: called on the thread when a request is ready.
    """

    def __init__(self, grammars: Grammars, wake: Callable[[], None]) -> None:
        self._grammars = grammars
        self._wake = wake
        self._waiting: dict[int, Request] = {}
        self._ready: deque[CompiledRequest] = deque()
        self._thread = ThreadPoolExecutor(1, "grammars")

    def prepare(self) -> None:
        """Load the vocabulary, before the first grammar needs it."""
        self._thread.submit(lambda: self._grammars.vocabulary)

    @property
    def ready(self) -> bool:
        return bool(self._ready)

    def put(self, request: Request) -> None:
        """Compile the grammar of a request that has one."""
        self._waiting[request.request_id] = request
        self._thread.submit(self._compile, request)

    def cancel(self, request_id: int) -> bool:
        """Forget a request; False: there is none of that id."""
        return self._waiting.pop(request_id, None) is not None

    def take(self) -> list[CompiledRequest]:
        """Take the requests that are ready and not cancelled."""
        taken = []
        while self._ready:
            each = self._ready.popleft()
            if self._waiting.pop(each.request.request_id, None) is not None:
                taken.append(each)
        return taken

    def _compile(self, request: Request) -> None:
        self._ready.append(self._compiled(request))
        self._wake()

    def _compiled(self, request: Request) -> CompiledRequest:
        sampling = request.sampling
        assert sampling.grammar is not None
        try:
            request.compiled = compiled = self._grammars.compiled(sampling.grammar)
            matching = Matching(compiled, sampling, ())
        except GrammarError as error:
            return CompiledRequest(request, error=str(error))
        except Exception as error:  # whatever the vocabulary's file or llguidance raises ends this request only
            return CompiledRequest(request, error=f"{type(error).__name__}: {error}")
        for token_id in request.output_token_ids.tolist():
            matching.take(token_id)
        complete = len(request.output_token_ids) > 0 and matching.complete
        return CompiledRequest(request, complete=complete, error=matching.error)
