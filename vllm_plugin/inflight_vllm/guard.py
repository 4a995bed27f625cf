"""Keeps errors of the plugin away from vLLM."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("vllm.inflight")

_Arguments = ParamSpec("_Arguments")


class Guard:
    """Runs the plugin's parts of one process. The first error ends them all, with a line in the log; vLLM goes on.

    Attributes:
        problem: the error, in a sentence; None: there was none.
    """

    def __init__(self) -> None:
        self.problem: str | None = None

    def run(self, part: Callable[_Arguments, object], *arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        """Run a part, unless one failed before."""
        if self.problem is not None:
            return
        try:
            part(*arguments, **named)
        except Exception as error:
            self.problem = f"the plugin failed: {type(error).__name__}"
            log.exception("inflight: the plugin failed; vLLM goes on without it, with the limits as they are")
