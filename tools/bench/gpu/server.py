"""A server whose engine process is killed while streams are open."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models

from tools.bench.gpu.not_here import NotHereError
from tools.bench.gpu.reference import SCALES, make_prompts, make_reference
from tools.measure.served import free_port, log_end, process, wait_ready

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
_READY_SECONDS = 30.0


def killed(_argument: str, device: str, size: str, folder: Path) -> dict[str, Any]:
    """Stream the same requests twice; the second time the engine process is killed after the first tokens.

    Returns:
        ok: the tokens are the same. seconds_without_tokens: the longest wait of a stream. seconds: of a whole run.

    Raises:
        NotHereError: packages of the server are missing.
    """
    specs = {name: importlib.util.find_spec(name) for name in _NEEDED}
    missing = [name for name, spec in specs.items() if spec is None or "stand_in" in (spec.origin or "")]
    if missing:
        raise NotHereError(f"the server needs {', '.join(missing)}")
    scale = SCALES[size]
    make_reference(folder / "model", device, scale)
    vocabulary = {f"<{token_id}>": token_id for token_id in range(scale.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<0>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    url, log = f"http://127.0.0.1:{(port := free_port())}", folder / "server.log"
    command = [sys.executable, "-c", "from inflight_engine.cli import main; main()", "serve", str(folder / "model")]
    flags = ["--host", "127.0.0.1", "--port", str(port), "--device", device, "--num-kv-blocks", "512"]
    prompts = [prompt[:16] for prompt in make_prompts(scale)[-_STREAMS:]]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with process(log, [*command, *flags], environment) as server:
        wait_ready(f"{url}/ready", {"the server": (server, log)}, _READY_SECONDS)
        plain = _stream_all(url, prompts, None)
        interrupted = _stream_all(url, prompts, server.pid)
    same = [a[0] for a in plain] == [b[0] for b in interrupted] and all(len(a[0]) == _TOKENS for a in plain)
    waits = {"seconds_without_tokens": max(wait for _, wait in interrupted), "before": max(wait for _, wait in plain)}
    return {"ok": same, **waits, "log": log_end(log, 3)}


def _stream_all(url: str, prompts: list[list[int]], kills: int | None) -> list[tuple[list[int], float]]:
    """(tokens, longest seconds between two events) of each stream.

    Args:
        kills: the server's process, whose engine process is killed as soon as all streams have a token.
    """
    found: list[tuple[list[int], float]] = [([], 0.0)] * len(prompts)
    begun = threading.Barrier(len(prompts) + 1)

    def stream(index: int) -> None:
        body = {"prompt": prompts[index], "max_tokens": _TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/generate", json.dumps(body).encode(), headers)
        tokens: list[int] = []
        longest, last = 0.0, 0.0
        with urllib.request.urlopen(request, timeout=30) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                if not tokens:
                    begun.wait(10)
                else:
                    longest = max(longest, time.monotonic() - last)
                last = time.monotonic()
                tokens += json.loads(line.removeprefix(b"data: ")).get("tokens", [])
        found[index] = (tokens, longest)

    threads = [threading.Thread(target=stream, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    begun.wait(10)
    if kills is not None:
        os.kill(_engine_process(kills), signal.SIGKILL)
    for thread in threads:
        thread.join()
    return found


def _engine_process(server: int) -> int:
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return next(int(pid) for pid in children if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes())
