"""`vllm bench serve`, of the vLLM that `make bench` installs on this machine, with the tokenizer that it wrote."""

import json
import os
import subprocess
from pathlib import Path

import pytest

BENCH = Path.home() / ".cache/inflight/bench"
VLLM = BENCH / "vllm/venv/bin/vllm"
TOKENIZER = BENCH / "models/smollm2-135m-instruct-bfloat16"
REQUESTS = 8

pytestmark = pytest.mark.skipif(not (VLLM.exists() and TOKENIZER.exists()), reason="`make bench` installs vLLM")


@pytest.mark.parametrize(("backend", "path"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")])
def test_all_requests_are_answered_with_the_tokens_that_were_asked_for(url, model, tmp_path, backend, path):
    flags = {
        "backend": backend,
        "endpoint": path,
        "base-url": url,
        "model": model,
        "tokenizer": TOKENIZER,
        "dataset-name": "random",
        "random-input-len": 32,
        "random-output-len": 8,
        "num-prompts": REQUESTS,
        "result-dir": tmp_path,
        "result-filename": "result",
    }
    command = [VLLM, "bench", "serve", *(f"--{name}={value}" for name, value in flags.items())]
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    subprocess.run([*command, "--ignore-eos", "--save-result"], env=environment, check=True, timeout=300)
    result = json.loads((tmp_path / "result").read_text())
    assert (result["completed"], result["total_output_tokens"]) == (REQUESTS, 8 * REQUESTS)
