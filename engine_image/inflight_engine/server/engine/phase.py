"""Phase of the server, and its errors for calls that it cannot accept in that phase."""

from __future__ import annotations

from enum import StrEnum

from inflight_contract.errors import ApiError

RETRY_AFTER_LOADING = 5.0
RETRY_AFTER_GONE = 1.0
"""Seconds. A retrying client reaches another replica, or the replacement of this one."""


class Phase(StrEnum):
    """Life cycle of the engine process: first load, ready, reloading after a loss, failed for good."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


def no_engine(phase: Phase) -> ApiError:
    """The error while no engine is running."""
    match phase:
        case Phase.FAILED:
            return engine_failed("the engine process is gone and this server is ending; try again")
        case Phase.RESTARTING:
            return engine_failed("the engine process was lost and is restarting; try again")
    return ApiError(503, "the model is still loading", code="loading", retry_after=RETRY_AFTER_LOADING)


def engine_failed(message: str) -> ApiError:
    """The engine process exited; the request can be retried here or at another replica."""
    return ApiError(503, message, code="engine_failed", retry_after=RETRY_AFTER_GONE)


def engine_restarting(message: str) -> ApiError:
    """The engine process exited while the request waited for a slot, so the request is not the cause."""
    return ApiError(503, message, code="engine_restarting", retry_after=RETRY_AFTER_GONE)


def shutting_down() -> ApiError:
    """The delay of a drain is over."""
    return ApiError(
        503,
        "this replica is shutting down and takes no new requests; try again to reach another",
        code="draining",
        retry_after=RETRY_AFTER_GONE,
    )
