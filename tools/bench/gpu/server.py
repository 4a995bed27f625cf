"""Servers on a GPU: one whose engine process is killed while streams are open, and the rate of one over HTTP."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models

from tools.bench.gpu.not_here import NotHereError
from tools.bench.gpu.reference import SCALES, make_prompts, make_reference
from tools.bench.gpu.shapes import SHAPES, RandomWeights, parameter_shapes, write_config
from tools.bench.gpu.speed import SIZES
from tools.bench.gpu.workload import TEMPERATURE
from tools.measure.served import Process, free_port, log_end, process, wait_ready

_NEEDED = (
    "fastapi",
    "uvicorn",
    "pydantic",
    "opentelemetry",
    "prometheus_client",
    "jinja2",
    "httptools",
    "uvloop",
    "msgspec",
    "cryptography",
    "grpc",
)
_STREAMS = 4
_TOKENS = 400
_READY_SECONDS = 120.0
_CLIENTS = 8
"""Processes that read streams, so that none of them is what is measured."""


class Stream(NamedTuple):
    """A streamed answer.

    Attributes:
        tokens: token ids.
        times: when each event came, in seconds of the monotonic clock.
        sent: when the request was sent.
    """

    tokens: list[int]
    times: list[float]
    sent: float

    @property
    def longest_wait(self) -> float:
        """Seconds between two events."""
        return max(np.diff(self.times), default=0.0)


def killed(_argument: str, device: str, size: str, folder: Path) -> dict[str, Any]:
    """Stream the same requests twice; the second time the engine process is killed after the first tokens.

    Returns:
        ok: the tokens are the same. seconds_without_tokens: the longest wait of a stream. before: of a whole run.

    Raises:
        NotHereError: packages of the server are missing.
    """
    _need_packages()
    scale, log = SCALES[size], folder / "server.log"
    make_reference(folder / "model", device, scale)
    bodies = [_body(prompt[:16], _TOKENS, 0) for prompt in make_prompts(scale)[-_STREAMS:]]
    # What was decoded is computed as a prompt by the next process, which on a GPU rounds otherwise.
    flags = ["--num-kv-blocks", "512", *(["--batch-invariant"] if device == "cuda" else [])]
    with _server(folder / "model", scale.vocab_size, device, log, *flags) as (server, url):
        plain = _stream_all(url, bodies)
        interrupted = _stream_all(url, bodies, lambda: os.kill(_engine_process(server.pid), signal.SIGKILL))
    same = [each.tokens for each in plain] == [each.tokens for each in interrupted]
    waits = {
        "seconds_without_tokens": max(each.longest_wait for each in interrupted),
        "before": max(each.longest_wait for each in plain),
    }
    return {"ok": same and all(len(each.tokens) == _TOKENS for each in plain), **waits, "log": log_end(log, 3)}


def served(shape: str, device: str, size_name: str, folder: Path) -> dict[str, Any]:
    """Stream the requests of nano-vllm's benchmark, all at once.

    Returns:
        continuous: output tokens/s, from the first request to the last token. ttft, tpot: seconds, p50 and p95.

    Raises:
        NotHereError: as `killed`.
        RuntimeError: not all tokens came.
    """
    _need_packages()
    size, config, log = SIZES[size_name], SHAPES[shape], folder / "server.log"
    write_config(folder / "model", config)
    weights = RandomWeights(config, device)
    save_file({name: weights.get(name) for name in parameter_shapes(config)}, folder / "model" / "model.safetensors")
    workload = size.workload
    bodies = [_body(*each, TEMPERATURE) for each in zip(workload.prompts, workload.output_tokens, strict=True)]
    flags = [
        "--dtype",
        "bfloat16",
        "--max-model-len",
        str(size.max_model_len),
        "--max-num-seqs",
        str(max(size.batches)),
    ]
    flags += [] if device == "cuda" else ["--kv-cache-memory", "64Mi"]
    clients = ProcessPoolExecutor(_CLIENTS, mp_context=get_context("spawn"))
    with clients, _server(folder / "model", config["vocab_size"], device, log, *flags) as (_, url):
        _stream_all(url, bodies[:2])
        list(clients.map(abs, range(_CLIENTS)))  # they are started
        shares = [share for first in range(_CLIENTS) if (share := bodies[first::_CLIENTS])]
        streams = [stream for found in clients.map(_stream_all, repeat(url), shares) for stream in found]
    num_tokens = sum(len(each.tokens) for each in streams)
    if num_tokens != workload.num_output_tokens:
        raise RuntimeError(f"{num_tokens} output tokens came, not {workload.num_output_tokens}: {log_end(log, 3)}")
    seconds = max(each.times[-1] for each in streams) - min(each.sent for each in streams)
    ttft = [each.times[0] - each.sent for each in streams]
    tpot = [(each.times[-1] - each.times[0]) / (len(each.tokens) - 1) for each in streams]
    tails = {
        f"{name}_p{at}": float(np.percentile(v, at)) for name, v in (("ttft", ttft), ("tpot", tpot)) for at in (50, 95)
    }
    return {"engine": "the same over HTTP, streamed", "continuous": num_tokens / seconds, **tails}


def _need_packages() -> None:
    """Raise NotHereError where the server's are missing."""
    specs = {name: importlib.util.find_spec(name) for name in _NEEDED}
    missing = [name for name, spec in specs.items() if spec is None or "stand_in" in (spec.origin or "")]
    if missing:
        raise NotHereError(f"the server needs {', '.join(missing)}")


@contextmanager
def _server(model: Path, vocab_size: int, device: str, log: Path, *flags: str) -> Iterator[tuple[Process, str]]:
    """A ready server of a model whose folder lacks a tokenizer: its process and URL."""
    tokenizer = Tokenizer(models.WordLevel({f"<{token}>": token for token in range(vocab_size)}, unk_token="<0>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(model / "tokenizer.json"))
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-c", "from inflight_engine.cli import main; main()", "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", device, *flags]
    with process(log, command, {"PYTHONPATH": os.pathsep.join(sys.path)}) as server:
        wait_ready(f"{url}/ready", {"the server": (server, log)}, _READY_SECONDS)
        yield server, url


def _body(prompt: Sequence[int], max_tokens: int, temperature: float) -> bytes:
    """The body of a request."""
    fields = {"prompt": list(prompt), "max_tokens": max_tokens, "temperature": temperature}
    return json.dumps(fields | {"ignore_eos": True, "stream": True}).encode()


def _stream_all(url: str, bodies: list[bytes], disturb: Callable[[], None] | None = None) -> list[Stream]:
    """All streams, each in a thread of its own.

    Args:
        disturb: called as soon as all streams have a token.
    """
    begun = threading.Barrier(len(bodies) + 1) if disturb is not None else None

    def stream(body: bytes) -> Stream:
        request = urllib.request.Request(f"{url}/v1/generate", body, {"Content-Type": "application/json"})
        found = Stream([], [], time.monotonic())
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                if not found.tokens and begun is not None:
                    begun.wait(10)
                found.times.append(time.monotonic())
                found.tokens.extend(json.loads(line.removeprefix(b"data: ")).get("tokens", []))
        return found

    with ThreadPoolExecutor(len(bodies)) as threads:
        streams = [threads.submit(stream, body) for body in bodies]
        if disturb is not None and begun is not None:
            begun.wait(10)
            disturb()
        return [each.result() for each in streams]


def _engine_process(server: int) -> int:
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return next(int(pid) for pid in children if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes())
