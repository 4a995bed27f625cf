"""Time of the engine process between the end of a forward pass and the start of the next: its whole loop, with the real
runner on a tiny random model, over a socket to a process that reads the reports."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from inflight_engine import engine_process
from inflight_engine.channel import EngineChannel, FrameDecoder, encode
from inflight_engine.engine import Engine
from inflight_engine.messages import AddRequest, FromEngine, Shutdown, StepReport, ToEngine
from inflight_engine.output import StepOutput
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.torch_environment import let_threads_sleep
from inflight_settings.engine import EngineConfig
from inflight_settings.flag_types import number
from tools.bench.scheduler import Spread, spread, timer_cost_ns
from tools.bench.scheduler_load import Nanoseconds
from tools.measure.report import cpu_model

GOAL_MICROSECONDS = 150.0
PROMPT_TOKENS = 16
WARM_UP_STEPS = 50
MAX_STEPS = 3000
STOP_TOKEN_ID = 1
"""Stop token of every request: a server adds that of the model. Its row of the output layer is zero, and the most
likely logit is positive, so no request stops."""

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

PARTS = ("sample", "update", "report", "receive", "schedule", "prepare")
PARTS_MEAN = (
    "Sample: from the end of the logits until the tokens are collected. Update: the scheduler takes them in, and the "
    "report is put together. Report: it is encoded and sent. Receive: whether messages came. Schedule: the next plan. "
    "Prepare: the plan becomes the arrays of the next forward pass."
)


class Marks:
    """Times in nanoseconds at which the parts of an iteration ended; a row for each decode step that follows another
    one.

    Args:
        num_running: rows are kept of steps with this many decodes and nothing else.
    """

    def __init__(self, num_running: int) -> None:
        self.num_running = num_running
        self.rows: list[list[int]] = []
        self._row: list[int] = []

    def mark(self) -> None:
        self._row.append(time.perf_counter_ns())

    def forward_begins(self, num_tokens: int, *, decodes: bool) -> None:
        self.mark()
        if decodes and num_tokens == self.num_running and len(self._row) == len(PARTS) + 1:
            self.rows.append(self._row)

    def forward_ended(self) -> None:
        """Marks before it belong to an iteration that is over."""
        self._row = [time.perf_counter_ns()]

    def times(self) -> Nanoseconds:
        """[steps, parts]."""
        marks = np.array(self.rows, np.int64).reshape(-1, len(PARTS) + 1)
        return marks[:, 1:] - marks[:, :-1]


class MarkedRunner:
    """The real runner, its collections and launches marked."""

    def __init__(self, runner: Any, marks: Marks) -> None:
        if runner.lookahead:
            raise ValueError("this measures a loop whose steps do not overlap: on CPU")
        self.lookahead = False
        self.info = runner.info
        self._runner = runner
        self._marks = marks
        self.decodes = False

    def launch(self, plan: StepPlan) -> None:
        self._marks.mark()
        self.decodes = not plan.prefills
        self._runner.launch(plan)

    def collect(self) -> StepOutput:
        output: StepOutput = self._runner.collect()
        self._marks.mark()
        return output


class MarkedChannel(EngineChannel):
    def __init__(self, sock: socket.socket, marks: Marks) -> None:
        super().__init__(sock)
        self._marks = marks

    def send(self, message: FromEngine) -> None:
        self._marks.mark()
        super().send(message)
        self._marks.mark()

    def receive(self, *, wait: bool) -> list[ToEngine]:
        messages = super().receive(wait=wait)
        self._marks.mark()
        return messages


def load_marked(config: EngineConfig, marks: Marks) -> Engine:
    """The engine process's own way of loading, with marks around its runner's model and around its runner."""
    ranks: Any = import_module("inflight_engine.execution.parallel.ranks")
    build: Any = import_module("inflight_engine.execution.build")
    load_model, make_runner = build.load_model, ranks.make_runner
    holder: list[MarkedRunner] = []

    def load_marked_model(*arguments: Any) -> Any:
        model: Any = load_model(*arguments)
        hidden_states, logits = model.hidden_states, model.logits

        def marked_hidden_states(token_ids: Any, *others: Any) -> Any:
            marks.forward_begins(len(token_ids), decodes=holder[0].decodes)
            return hidden_states(token_ids, *others)

        def marked_logits(hidden: Any) -> Any:
            result = logits(hidden)
            marks.forward_ended()
            return result

        model.hidden_states, model.logits = marked_hidden_states, marked_logits
        return model

    def make_marked_runner(*arguments: Any) -> Any:
        holder.append(MarkedRunner(make_runner(*arguments), marks))
        return holder[0]

    build.load_model = load_marked_model
    ranks.make_runner = make_marked_runner
    try:
        engine, _ = engine_process.load(config)
    finally:
        build.load_model, ranks.make_runner = load_model, make_runner
    return engine


def write_model(folder: Path) -> None:
    """A Llama of random weights, in Hugging Face's format."""
    import torch
    from safetensors.torch import save_file

    from tools.bench.gpu.shapes import parameter_shapes

    generator, deviation = torch.Generator().manual_seed(0), MODEL["hidden_size"] ** -0.5
    tensors = {
        name: torch.randn(shape, generator=generator).mul(deviation).bfloat16()
        if len(shape) == 2
        else torch.ones(shape, dtype=torch.bfloat16)
        for name, shape in parameter_shapes(MODEL).items()
    }
    tensors["lm_head.weight"][STOP_TOKEN_ID] = 0
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(MODEL))


def measure(folder: Path, num_running: int, num_steps: int, num_threads: int | None) -> Nanoseconds:
    """Times [steps, parts] of steady decode."""
    marks = Marks(num_running)
    config = EngineConfig(
        str(folder),
        device="cpu",
        num_threads=num_threads,
        max_num_seqs=num_running,
        max_num_batched_tokens=num_running * PROMPT_TOKENS,
        num_kv_blocks=num_running * (-(-(PROMPT_TOKENS + num_steps + WARM_UP_STEPS) // 16) + 1),
    )
    engine = load_marked(config, marks)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    arguments = [str(theirs.fileno()), str(num_running), str(num_steps + WARM_UP_STEPS)]
    client = subprocess.Popen(
        [sys.executable, "-m", "tools.bench.engine_loop", "--client", *arguments], pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    try:
        with ours:
            engine_process.serve(engine, MarkedChannel(ours, marks))
    finally:
        engine.close()
        status = client.wait()
    if status != 0:
        raise RuntimeError(f"the client exited with status {status}")
    return marks.times()[WARM_UP_STEPS:]


def run_client(fd: int, num_running: int, num_steps: int) -> None:
    """The other end: sends requests of equal length, reads the reports, and ends the engine."""
    random = np.random.default_rng(0)
    sampling = SamplingParams(max_tokens=num_steps, stop_token_ids=(STOP_TOKEN_ID,))
    with socket.socket(fileno=fd) as sock:
        prompts = random.integers(2, MODEL["vocab_size"], (num_running, PROMPT_TOKENS), np.int32)
        frames = [encode(AddRequest(i, prompt.tobytes(), sampling, float(i))) for i, prompt in enumerate(prompts)]
        sock.sendall(b"".join(frames))
        decoder, left = FrameDecoder.for_api(), num_running
        while left and (data := sock.recv(1 << 16)):
            left -= sum(len(report.finished) for report in decoder.feed(data) if isinstance(report, StepReport))
        if left:
            raise RuntimeError(f"{left} requests did not end")
        sock.sendall(encode(Shutdown()))
        sock.recv(1)  # until the engine has left


@dataclass(frozen=True, slots=True)
class Row:
    """Times in microseconds. `parts`: `PARTS` by name. `gap`: their sum, from forward pass to forward pass."""

    num_running: int
    num_steps: int
    gap: Spread
    parts: dict[str, Spread]

    @property
    def meets_goal(self) -> bool:
        return self.gap.median <= GOAL_MICROSECONDS


def row(num_running: int, times: Nanoseconds, timer_cost: int) -> Row:
    times = times - timer_cost
    parts = {name: spread(times[:, index]) for index, name in enumerate(PARTS)}
    return Row(num_running, len(times), spread(times.sum(axis=1)), parts)


def lines(facts: dict[str, str | int], rows: Sequence[Row]) -> Iterator[str]:
    """The report for a person."""
    yield f"{facts['cpu']}, Python {facts['python']}, torch {facts['torch']}, {facts['threads']} threads compute"
    yield f"Microseconds between two forward passes; {facts['timer_cost_ns']} ns of the timer's own cost taken off each"
    yield "reading."
    yield ""
    names = ("whole", *PARTS)
    yield f"running |{' |'.join(f'{name:^13s}' for name in names)} | <= {GOAL_MICROSECONDS:.0f}"
    yield f"{'':7s} |{' |'.join(len(names) * [' median   p95'])} |"
    for each in rows:
        columns = " |".join(f"{part.median:7.1f} {part.p95:5.0f}" for part in (each.gap, *each.parts.values()))
        yield f"{each.num_running:7d} |{columns} | {'yes' if each.meets_goal else 'no'}"
    yield ""
    yield textwrap.fill(PARTS_MEAN, 110)


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        run_client(*map(int, sys.argv[2:]))
        return
    let_threads_sleep()
    size: Callable[[str], int] = number(int, 1, 4096)
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.engine_loop",
        description=" ".join(str(__doc__).split()),
        epilog="example: python -m tools.bench.engine_loop --sizes 32 256 --steps 500",
    )
    parser.add_argument(
        "--sizes", type=size, nargs="+", default=[32, 256], metavar="N", help="running requests (default: 32 256)"
    )
    parser.add_argument(
        "--steps", type=number(int, 20, MAX_STEPS), default=1000, metavar="N",
        help="decode steps to time at each size (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=number(int, 1, os.cpu_count() or 1), metavar="N",
        help="threads that compute (default: the engine's own)",
    )  # fmt: skip
    arguments = parser.parse_args()
    timer_cost = timer_cost_ns()
    with tempfile.TemporaryDirectory(prefix="engine-loop-") as folder:
        write_model(Path(folder))
        rows = []
        for num_running in arguments.sizes:
            times = measure(Path(folder), num_running, arguments.steps, arguments.threads)
            rows.append(row(num_running, times, timer_cost))
            gc.collect()
    import torch

    facts: dict[str, str | int] = {
        "cpu": cpu_model(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "timer_cost_ns": timer_cost,
    }
    print("\n".join(lines(facts, rows)))


if __name__ == "__main__":
    main()
