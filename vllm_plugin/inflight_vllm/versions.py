"""Versions of vLLM that the plugin was tested with, and the names of vLLM's source that it needs.

None of these names is a public interface of vLLM. They are looked up in the source, without importing it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

TESTED = ("0.31", "0.32")
"""Minor versions; `tests/vllm_plugin/test_contract.py` starts a server of each."""

SCHEDULER = "inflight_vllm.scheduler.LiveScheduler"

NAMES = {
    "v1/core/sched/async_scheduler.py": ("AsyncScheduler",),
    "v1/core/sched/scheduler.py": (
        "Scheduler.schedule", "Scheduler.update_from_output", "Scheduler.add_request", "Scheduler.shutdown",
        "Scheduler.requests", "Scheduler.block_size", "Scheduler.vllm_config", "Scheduler.max_num_active_reqs",
        "Scheduler.max_num_scheduled_tokens", "Scheduler.waiting", "Scheduler.running", "Scheduler.connector",
        "Scheduler.kv_cache_manager",
    ),
    "v1/core/sched/request_queue.py": tuple(
        f"RequestQueue.{name}"
        for name in (
            "add_request", "pop_request", "peek_request", "prepend_request", "prepend_requests", "remove_request",
            "remove_requests", "__bool__", "__len__", "__iter__",
        )
    ),
    "v1/core/kv_cache_manager.py": ("KVCacheManager.coordinator",),
    "v1/core/kv_cache_coordinator.py": ("KVCacheCoordinator.find_longest_cache_hit",),
    "v1/core/sched/output.py": (
        "SchedulerOutput.num_scheduled_tokens", "SchedulerOutput.total_num_scheduled_tokens",
        "SchedulerOutput.scheduled_new_reqs", "SchedulerOutput.scheduled_cached_reqs",
        "CachedRequestData.resumed_req_ids",
    ),
    "v1/request.py": (
        "Request.request_id", "Request.status", "Request.num_prompt_tokens", "Request.num_computed_tokens",
        "Request.num_output_tokens", "Request.is_finished", "Request.priority", "Request.arrival_time",
        "Request.block_hashes", "Request.num_preemptions", "Request.skip_reading_prefix_cache",
        "RequestStatus.FINISHED_ABORTED",
    ),
    "config/scheduler.py": (
        "SchedulerConfig.scheduler_cls", "SchedulerConfig.async_scheduling", "SchedulerConfig.policy",
        "SchedulerConfig.get_scheduler_cls", "SchedulerConfig.enable_chunked_prefill",
        "SchedulerConfig.disable_chunked_mm_input",
    ),
    "config/vllm.py": (
        "VllmConfig.cache_config", "VllmConfig.device_config", "VllmConfig.model_config", "VllmConfig.parallel_config",
        "VllmConfig.scheduler_config",
    ),
    "config/device.py": ("DeviceConfig.device_type",),
    "config/model.py": ("ModelConfig.max_model_len",),
    "config/parallel.py": ("ParallelConfig.data_parallel_size", "ParallelConfig._api_process_count"),
    "config/cache.py": ("CacheConfig.num_gpu_blocks", "CacheConfig.enable_prefix_caching"),
    "engine/arg_utils.py": ("EngineArgs.model", "EngineArgs.served_model_name"),
}  # fmt: skip
"""Classes, and their methods, fields and attributes, by file of the package `vllm`."""


def problem() -> str | None:
    """Return why the installed vLLM cannot be changed while it runs, in a sentence; None: it can."""
    version = installed_version()
    minor = ".".join(version.split("+")[0].split(".")[:2])
    if minor not in TESTED:
        return f"vLLM {version} is not one that this plugin was tested with ({', '.join(TESTED)})"
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return "the package vllm cannot be found"
    lacking = missing(Path(spec.origin).parent)
    return f"vLLM {version} lacks names that this plugin needs: {', '.join(lacking)}" if lacking else None


def installed_version() -> str:
    """Return vLLM's version; `unknown` where it is not installed as a distribution."""
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def missing(package: Path) -> list[str]:
    """Return the names that the sources of a package `vllm` lack, as `FILE: NAME`."""
    lacking: list[str] = []
    for file, names in NAMES.items():
        path = package / file
        found = set(_names(ast.parse(path.read_bytes()))) if path.is_file() else set()
        lacking += [f"{file}: {name}" for name in names if name not in found]
    return lacking


def _names(module: ast.Module) -> Iterator[str]:
    for each in module.body:
        if isinstance(each, ast.ClassDef):
            yield each.name
            yield from (f"{each.name}.{name}" for name in _members(each))


def _members(kind: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(kind):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
