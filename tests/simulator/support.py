"""Helpers of the simulator's tests."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from inflight_engine.scheduling.config import SchedulerConfig
from inflight_settings.limits import Limits
from inflight_simulator.arrivals import Arrival
from inflight_simulator.cli import main

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).parents[2] / "simulator" / "examples"


def together(output_tokens, prompt_tokens=10):
    """Requests that all come at 0."""
    return [Arrival(0.0, prompt_tokens, int(length)) for length in output_tokens]


def write_csv(path, arrivals):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["arrival_s", "prompt_tokens", "output_tokens"])
    writer.writerows([each.arrival_s, each.prompt_tokens, each.output_tokens] for each in arrivals)
    path.write_text(out.getvalue())
    return str(path)


def simulate(capsys, *arguments):
    """Output of `--json`."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def scheduler_config(max_num_seqs=8, max_num_batched_tokens=512, num_blocks=10_000, **more):
    return SchedulerConfig(
        capacity=Limits(max_num_seqs, max_num_batched_tokens),
        num_blocks=num_blocks,
        block_size=16,
        max_model_len=20_000,
        **{"kv_headroom": 0.0, **more},
    )
