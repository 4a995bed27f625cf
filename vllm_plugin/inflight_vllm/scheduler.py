"""The scheduler of a vLLM server; loaded in its engine process by `--scheduler-cls`."""

from __future__ import annotations

import logging
from typing import Any

from inflight_vllm.board import Board, Report, board_path
from inflight_vllm.versions import problem

log = logging.getLogger("vllm.inflight")


def LiveScheduler(**arguments: Any) -> Any:
    """Return a scheduler with live limits, of the kind that vLLM would make; vLLM's own where they cannot change."""
    config = arguments["vllm_config"]
    try:
        found = _unsupported(config)
    except Exception as error:
        log.exception("inflight: vLLM's configuration cannot be read")
        found = f"the plugin failed: {type(error).__name__}"
    board = None
    try:
        board = Board.create(board_path())
    except OSError as error:
        found = found or f"{board_path()} cannot be written: {error.strerror}"
    if board is None or found is not None:
        log.warning("inflight: %s; this server runs vLLM's own scheduler, and its limits stay as they are", found)
        if board is not None:
            board.report.write(Report(problem=found))
        config.scheduler_config.scheduler_cls = None
        return config.scheduler_config.get_scheduler_cls()(**arguments)
    # Not before: a vLLM that is not known may lack what this imports.
    from inflight_vllm.live import LiveAsyncScheduler, LiveSyncScheduler

    kind = LiveAsyncScheduler if config.scheduler_config.async_scheduling else LiveSyncScheduler
    return kind(board, **arguments)


def _unsupported(config: Any) -> str | None:
    """Return why limits cannot change under a `VllmConfig`, in a sentence; None: they can."""
    found = problem()
    if found is not None:
        return found
    # Not before: a vLLM that is not known may lack these fields.
    if config.parallel_config.data_parallel_size > 1:
        return "several engines in one server (--data-parallel-size) have no common limits"
    if config.parallel_config._api_process_count > 1:
        return "several API processes in one server (--api-server-count) have no common limits"
    if not config.scheduler_config.enable_chunked_prefill:
        return "without chunked prefill, a prompt longer than a limit of tokens would wait for ever"
    if config.scheduler_config.disable_chunked_mm_input:
        return "without chunked multimodal input, an image longer than a limit of tokens would be split"
    return None
