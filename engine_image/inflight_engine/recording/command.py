"""The command `inflight-engine replay`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SUMMARY = "replay a recording of scheduling decisions"

DESCRIPTION = """\
Replay a recording of `inflight-engine serve --record FILE`: feed the same inputs to the scheduler of this version and
compare every decision. Prints "no difference" and exits with 0, or the first difference with the plan of the replay,
and exits with 1. A file that is still being written, or was truncated, is replayed up to its end. Only recordings of
the same format can be replayed; the error names the version that wrote the file.

A recording is gzip with one JSON array a line: zcat shows it, and an edited one can be replayed, compressed or not. The
line of a step has: its number, microseconds, the work of the cost model (decodes, prefill tokens, tokens that decodes
and prefills attend to, tokens copied), a digest of its plan, finished requests, whether the next step was planned
ahead, and slots without memory. It contains no prompt and no output: full KV blocks are numbered by content. External
events are inputs of the replay and not compared: arrivals, cancellations, changes of limits, sampled stop tokens, and
lack of memory."""

EXAMPLE = """\
example:
  inflight-engine serve builtin://smollm2 --record run.jsonl.gz
  inflight-engine replay run.jsonl.gz"""

_PROGRESS_SECONDS = 0.5


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="a recording")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(path: Path, *, as_json: bool) -> int:
    """Print the result; returns the exit status: 0 no difference, 1 a difference, 2 the file cannot be replayed."""
    # Only now: `serve` shares the command line, and has to start fast.
    from inflight_engine.recording.reader import Recording, RecordingError
    from inflight_engine.recording.replay import Survey, replay

    try:
        recording = Recording(path)
        survey = Survey(recording.events())
        cut_short = recording.cut_short
        with _progress(survey.num_steps) as on_step:
            difference = replay(recording.header.config, recording.events(), survey, on_step)
    except RecordingError as error:
        return _failed(f"{path} {error}")
    except OSError as error:
        return _failed(f"cannot read {path}: {error.strerror or error}")
    except ValueError as error:
        return _failed(f"{path} cannot be replayed: {error}")
    except MemoryError:  # only lengths that no engine has written take so much
        return _failed(f"{path} cannot be replayed: it has requests or caches that do not fit in memory")
    header = recording.header
    if as_json:
        result = {
            "program": header.program,
            "started": header.started,
            "requests": survey.num_requests,
            "steps": survey.num_steps,
            "cut_short": cut_short,
            "difference": None if difference is None else difference._asdict(),
        }
        print(json.dumps(result))
    else:
        print(f"recorded from {header.started} by inflight-engine {header.program}")
        print(f"{survey.num_requests} requests, {survey.num_steps} steps")
        if cut_short:
            print("the file stops before its end (its engine runs still, or was killed): replayed what is there")
        print("no difference" if difference is None else difference)
    return 0 if difference is None else 1


@contextmanager
def _progress(num_steps: int) -> Iterator[Callable[[int], None] | None]:
    """Show on the terminal how far the replay is, a few times a second."""
    if not sys.stderr.isatty():
        yield None
        return
    due = time.monotonic() + _PROGRESS_SECONDS

    def on_step(num_replayed: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + _PROGRESS_SECONDS
            print(f"\r{num_replayed} of {num_steps} steps", end="", file=sys.stderr, flush=True)

    try:
        yield on_step
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _failed(sentence: str) -> int:
    print("error:", " ".join(sentence.split()), file=sys.stderr)
    return 2
