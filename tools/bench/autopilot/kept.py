"""A file of what was measured so far: a benchmark that was cut goes on where it was, and its parts can run apart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inflight_settings.limits import Limits
from tools.bench.autopilot.pilot import Change
from tools.bench.autopilot.report import PilotRun
from tools.bench.autopilot.traffic import Answer


@dataclass(slots=True)
class Kept:
    """Results, all of measurements under the same `conditions`.

    Attributes:
        file: where they are; None: in memory only.
        loads: requests in one slice, of short and of long prompts.
        fixed: goodput of a traffic (0: short prompts, 1: long ones) under limits, one value for each window.
    """

    conditions: dict[str, Any]
    file: Path | None = None
    loads: list[int] = field(default_factory=list)
    fixed: dict[tuple[int, Limits], list[float]] = field(default_factory=dict)
    runs: list[PilotRun] = field(default_factory=list)

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        if self.file is None:
            return
        content = {
            "conditions": self.conditions,
            "loads": self.loads,
            "fixed": [
                {"traffic": traffic, **asdict(limits), "goodputs": values}
                for (traffic, limits), values in self.fixed.items()
            ],
            "runs": [asdict(one) for one in self.runs],
        }
        part = self.file.with_name(self.file.name + ".part")
        part.write_text(json.dumps(content) + "\n")
        part.rename(self.file)


def kept(file: Path | None, conditions: dict[str, Any]) -> Kept:
    """Reads the results of earlier runs, if there are any.

    Raises:
        ValueError: they were measured under other conditions.
    """
    if file is None or not file.exists():
        return Kept(conditions, file)
    content = json.loads(file.read_text())
    if content["conditions"] != conditions:
        raise ValueError(
            f"{file} has results of {content['conditions']}, and these are {conditions}: take another file"
        )
    return Kept(
        conditions,
        file,
        content["loads"],
        {
            (one["traffic"], Limits(one["max_num_seqs"], one["max_num_batched_tokens"])): one["goodputs"]
            for one in content["fixed"]
        },
        [_run(one) for one in content["runs"]],
    )


def _run(content: dict[str, Any]) -> PilotRun:
    return PilotRun(
        **{
            **content,
            "start": Limits(**content["start"]),
            "at_end": Limits(**content["at_end"]),
            "answers": tuple(Answer(**one) for one in content["answers"]),
            "changes": tuple(Change(**{**one, "limits": Limits(**one["limits"])}) for one in content["changes"]),
        }
    )
