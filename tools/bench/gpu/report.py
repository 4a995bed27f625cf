"""Results of the stages, as text for a terminal and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.engine.report import number
from tools.bench.gpu.correctness import Check
from tools.bench.gpu.shapes import TITLES

IN_FORCE = "in force"
"""Beginning of the name of a case of stage `tiles` with the numbers that the code has."""
_MARKS = {True: "ok", False: "WRONG", None: "not here"}


def check_rows(checks: Sequence[Check]) -> list[list[str]]:
    return [["check", "", ""], *([check.name, _MARKS[check.ok], check.detail] for check in checks)]


def item_row(name: str, result: Mapping[str, Any]) -> list[str]:
    """A row of stage `first`."""
    for state in ("failed", "missing"):
        if state in result:
            return [name, state, result[state]]
    figures = {key: value for key, value in result.items() if isinstance(value, int | float | str) and key != "ok"}
    told = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items())
    return [name, _MARKS[result.get("ok", True)], result.get("detail") or ", ".join(told)]


def tile_rows(lines: Path) -> list[list[str]]:
    """Rows of stage `tiles`: for each kernel and size the fastest case beside the one in force.

    Args:
        lines: file in which each case is a line of JSON.
    """
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for line in lines.read_text().splitlines() if lines.exists() else ():
        found = json.loads(line)
        if "us" in found:
            groups.setdefault((found["what"], found["size"]), {})[found["variant"]] = found["us"]
    table = [["kernel", "size", IN_FORCE, "fastest"]]
    for (what, size), times in groups.items():
        best = min(times, key=times.__getitem__)
        in_force = next((f"{us:.1f} us" for variant, us in times.items() if variant.startswith(IN_FORCE)), "")
        table.append([what, size, in_force, f"{times[best]:.1f} us: {best}"])
    return table


def speed_rows(shape: str, results: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Rows of a stage's table; `results`: each engine's, as `part.isolated` gives them."""
    rows = [[TITLES[shape], "figure", ""]]
    ours = results["inflight"]
    problem = ours.get("failed") or ours.get("missing")
    rows += [["inflight", "failed", problem]] if problem else list(_our_rows(ours))
    for name, theirs in results.items():
        if name == "inflight":
            continue
        if "continuous" in theirs:
            notes = [f"ours is {ours['continuous'] / theirs['continuous']:.2f} times that"] if not problem else []
            notes += [
                f"{name.upper()} {1e3 * theirs[f'{name}_p50']:.0f} ms, p95 {1e3 * theirs[f'{name}_p95']:.0f} ms"
                for name in ("ttft", "tpot")
                if f"{name}_p50" in theirs
            ]
            rows.append([theirs["engine"], f"{number(theirs['continuous'])} output tokens/s", "; ".join(notes)])
        else:
            rows.append([name, "failed" if "failed" in theirs else "not here", next(iter(theirs.values()))])
    return rows


def _our_rows(ours: Mapping[str, Any]) -> Iterator[list[str]]:
    yield [
        "measured ceilings",
        f"{ours['bytes_per_second'] / 1e9:.0f} GB/s",
        f"{ours['flops_per_second'] / 1e12:.1f} TFLOP/s in bfloat16 products",
    ]
    yield ["load", f"{number(ours['load_seconds'])} s", f"attention {ours['attention']}"]
    yield ["nano-vllm's requests", f"{number(ours['continuous'])} output tokens/s", "continuous batching"]
    for name in ours:
        if name.startswith("decode_") and name.removeprefix("decode_").isdecimal():
            shares = f"{ours[f'{name}_bandwidth']:.0%} of bandwidth, {ours[f'{name}_limit']:.0%} of the roofline"
            yield [f"decode at batch {name.removeprefix('decode_')}", f"{number(ours[name])} tokens/s", shares]
    yield ["prefill", f"{number(ours['prefill'])} tokens/s", f"{ours['prefill_matrix']:.0%} of matrix peak"]
    if "decode_busy" in ours:
        yield ["GPU idle between kernels, decoding", f"{1 - ours['decode_busy']:.1%}", "of the time, by the profiler"]
