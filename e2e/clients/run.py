"""Runs suites against an engine with the built-in model, and against a gateway in front of the same engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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
GRPC, PREFILL = "grpc", "prefill"
"""Names among the addresses of ways: of the engine's gRPC port, and of that of a second engine."""
SUITE_SECONDS = 900

GENERATION = {"temperature": 0.0, "max_new_tokens": 512}
"""Sampling of requests that do not say theirs: the same answers in each run, of a length that suits a CPU."""

_FLAGS = ("--served-model-name", MODEL, "--tool-call-parser", "hermes", "--dtype", "float32", "--swap-space", "256Mi")
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
def servers(folder: Path, *, pair: bool) -> Iterator[dict[str, str]]:
    """An engine and a gateway in front of it. Yields the address by way, and those of `GRPC` and `PREFILL`.

    Args:
        folder: for their files; new or empty.
        pair: there is a second engine, of the same service.

    Raises:
        FileExistsError: another run's files are there.
        RuntimeError: a process did not become ready; the message has the end of its log.
    """
    defaults = folder / "generation"
    defaults.mkdir(parents=True)
    (defaults / "generation_config.json").write_text(json.dumps(GENERATION))
    flags = (*_FLAGS, "--generation-config", str(defaults))

    @contextmanager
    def started(name: str) -> Iterator[tuple[str, str]]:
        grpc, environment = free_port(), {"INFLIGHT_ADMIN_TOKEN": "clients", "INFLIGHT_POD_UID": name}
        with served_engine(
            folder / f"{name}.log", *flags, "--grpc-port", str(grpc), "--admin-port", "0", environment=environment
        ) as url:
            yield url, f"grpc://127.0.0.1:{grpc}"

    with (
        started("engine") as (engine, grpc),
        started("prefill") if pair else nullcontext(("", "")) as (_, prefill),
    ):
        service = {"name": MODEL, "endpoints": [engine.removeprefix("http://")], "max_num_seqs": 256}
        # Clients have an address and a name of a model, and no name of a host that is a service's.
        with gateways(folder / "gateway", [service], flags=("--model-namespace", "default")) as running:
            gateway = f"http://127.0.0.1:{running.pods[0].port}"
            yield {DIRECT: engine, GATEWAY: gateway, GRPC: grpc, PREFILL: prefill}


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
    places |= {"INFLIGHT_GRPC": urls[GRPC], "INFLIGHT_PREFILL": urls[PREFILL]}
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
    with servers(folder, pair=any(suite.pair for suite in suites)) as urls:
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
