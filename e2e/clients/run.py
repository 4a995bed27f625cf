"""Runs suites against an engine with the built-in model, and against a gateway in front of the same engine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.clients.environment import VARIABLES, command
from e2e.clients.results import Results, read
from e2e.clients.suites import DIRECT, FOLDER, GATEWAY, Suite
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer
from tools.bench.gateway.stack import gateways
from tools.measure import served
from tools.measure.served import free_port, log_end, process, served_engine

MODEL = "smollm2"
GRPC, SERVE = "grpc", "serve"
"""Names beside the ways: of the address of the engine's gRPC port, and of the command that starts another engine of the
same service."""
SUITE_SECONDS = 900

GENERATION = {"temperature": 0.0, "max_new_tokens": 512}
"""Sampling of requests that do not say theirs: the same answers in each run, of a length that suits a CPU."""

_FLAGS = (
    *("--served-model-name", MODEL, "--tool-call-parser", "hermes", "--dtype", "float32", "--swap-space", "256Mi"),
    *("--admin-port", "0"),
)
_PYTEST = ("--config-file=/dev/null", "--import-mode=importlib", "-p", "no:cacheprovider", "-q", "--tb=short")
_WHOLE = (0, 1)
"""Exit codes of pytest after all tests: all passed, some failed."""
_TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}


def write_tokenizer(folder: Path) -> None:
    """Writes the model's tokenizer in Hugging Face's format, for clients that tokenize."""
    folder.mkdir(parents=True, exist_ok=True)
    load_tokenizer(resolve(served.MODEL)).save(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER))


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, str]]:
    """An engine and a gateway in front of it. Yields the address by way, and what `GRPC` and `SERVE` name.

    Args:
        folder: for their files; new or empty.

    Raises:
        FileExistsError: another run's files are there.
        RuntimeError: a process did not become ready; the message has the end of its log.
    """
    defaults = folder / "generation"
    defaults.mkdir(parents=True)
    (defaults / "generation_config.json").write_text(json.dumps(GENERATION))
    flags = (*_FLAGS, "--generation-config", str(defaults))
    token, grpc = {"INFLIGHT_ADMIN_TOKEN": "clients"}, free_port()
    # A suite has no PYTHONPATH, and runs in another folder.
    variables = {**token, "INFLIGHT_POD_UID": "another", "PYTHONPATH": os.pathsep.join(sys.path)}
    another = ("env", *(f"{name}={value}" for name, value in variables.items()), str(served.ENGINE), "serve")
    with served_engine(
        folder / "engine.log",
        *(*flags, "--grpc-port", str(grpc)),
        environment={**token, "INFLIGHT_POD_UID": "engine"},
    ) as engine:
        service = {"name": MODEL, "endpoints": [engine.removeprefix("http://")], "max_num_seqs": 256}
        # Clients have an address and a name of a model, and no name of a host that is a service's.
        with gateways(folder / "gateway", [service], flags=("--model-namespace", "default")) as running:
            gateway = f"http://127.0.0.1:{running.pods[0].port}"
            serve = shlex.join((*another, served.MODEL, *flags))
            yield {DIRECT: engine, GATEWAY: gateway, GRPC: f"grpc://127.0.0.1:{grpc}", SERVE: serve}


def run(suite: Suite, way: str, urls: Mapping[str, str], folder: Path) -> Results:
    """Runs a suite on one way. Its output is in a file of `folder`.

    Args:
        urls: of `servers`. The engine has the specification, on every way.

    Raises:
        ValueError: the suite took too long, left no report or half of one; the message has the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report, log = folder / f"{suite.name}.xml", folder / f"{suite.name}.log"
    report.unlink(missing_ok=True)
    tests = ("python", "-m", "pytest", *_PYTEST, f"--rootdir={FOLDER}", f"--junitxml={report}", *suite.options)
    write_tokenizer(folder / "tokenizer")
    places = {"INFLIGHT_URL": urls[way], "INFLIGHT_ENGINE": urls[DIRECT]}
    places |= {"INFLIGHT_GRPC": urls[GRPC], "INFLIGHT_SERVE": urls[SERVE]}
    places["INFLIGHT_TOKENIZER"] = str(folder / "tokenizer")
    variables = {**VARIABLES, **places, "INFLIGHT_MODEL": MODEL}
    with process(log, command(suite, *tests, str(suite.tests)), variables, folder) as running:
        try:
            code = running.wait(SUITE_SECONDS)
        except subprocess.TimeoutExpired:
            raise ValueError(f"{suite.name} took longer than {SUITE_SECONDS} s: {log_end(log)}") from None
    try:
        results = read(report, suite, way)
    except ValueError as error:
        raise ValueError(f"{error}: {log_end(log, 5)}") from None
    if code not in _WHOLE and not results.faults():
        raise ValueError(f"{suite.name} ended early, with exit code {code}: {log_end(log, 5)}")
    return results


def run_all(
    suites: Sequence[Suite],
    folder: Path,
    ways: Sequence[str],
    say: Callable[[str], None],
) -> dict[Suite, dict[str, Results | str]]:
    """Returns the results by suite and way; a text: why there are none. Raises: see `servers`."""
    found: dict[Suite, dict[str, Results | str]] = {}
    with servers(folder) as urls:
        for suite in suites:
            found[suite] = {}
            for way in ways:
                if way not in suite.ways:
                    continue
                try:
                    result: Results | str = run(suite, way, urls, folder / way)
                except ValueError as error:
                    result = str(error)
                say(f"{suite.name}, {way}: {result}")
                found[suite][way] = result
    return found
