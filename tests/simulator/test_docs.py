"""The outputs in the guide are those of the commands."""

import csv
import shlex
from pathlib import Path

import numpy as np
import pytest

from inflight_simulator.cli import main

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "simulator.md").read_text()
TIMES = "prompt_tokens", "arrival_s", "admitted_s", "finished_s", "ttft"


def test_the_table_in_the_guide_is_what_its_command_prints(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, _, shown = GUIDE.partition("```console\n$ inflight-simulate ")[2].partition("\n")
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out.rstrip() == shown.partition("\n```")[0].rstrip()


@pytest.mark.parametrize("name", ["four", "long_prompt", "burst"])
def test_the_commands_of_the_pictures_run(name, monkeypatch, tmp_path):
    blocks = [part.partition("```")[0] for part in GUIDE.split("```bash\n")[1:]]
    block = next(block for block in blocks if f"{name}.csv" in block and "--plot" in block)
    words = shlex.split(block.replace("\\\n", " "))
    assert words[0] == "inflight-simulate"
    words[2] = str(ROOT / words[2])
    monkeypatch.chdir(tmp_path)
    assert main(words[1:]) == 0
    assert len(list(tmp_path.glob("*.png"))) == 1


def test_figures_said_of_the_long_prompt_hold(capsys, tmp_path):
    trace = str(ROOT / "simulator" / "examples" / "long_prompt.csv")
    found = []
    for more in ([], ["--no-chunked-prefill"]):
        rows = tmp_path / "rows.csv"
        flags = ["--max-num-seqs", "8", "--max-num-batched-tokens", "512", "--requests", str(rows)]
        assert main(["engine", trace, *flags, *more]) == 0
        header, first, *_, last = (line.split(",") for line in rows.read_text().splitlines())
        gap = float(first[header.index("longest_gap")])
        found.append((round(gap * 1000), float(last[header.index("first_token_s")])))
    (chunked_gap, chunked_first), (whole_gap, whole_first) = found
    assert f"wait {whole_gap} ms for their next token; in six chunks, {chunked_gap} ms at most" in " ".join(
        GUIDE.split()
    )
    assert f"first token is {round((chunked_first - whole_first) * 1000)} ms later" in " ".join(GUIDE.split())


@pytest.mark.parametrize("policy", ["fair", "fcfs"])
def test_figures_said_of_requests_of_half_the_cache_hold(policy, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    section = GUIDE.partition("## Requests of half the KV cache\n")[2].partition("\n## ")[0]
    text = " ".join(section.split())
    block = section.partition("```bash\n")[2].partition("```")[0].replace("\\\n", " ")
    script, *commands = block.split("inflight-simulate ")
    exec(shlex.split(script)[2], {})
    rows = {}
    for name, command in zip(("others", "large"), commands, strict=True):
        assert main([*shlex.split(command), "--scheduling-policy", policy]) == 0
        with Path(f"{name}-times.csv").open() as file:
            rows[name] = [{key: float(row[key]) for key in TIMES} for row in csv.DictReader(file)]
    large = [row for row in rows["large"] if row["prompt_tokens"] == 50_000]

    def ttft_ms(name):
        """Returns that at p95 of the others that come while a large one waits."""
        found = [
            row["ttft"]
            for row in rows[name]
            if row["prompt_tokens"] == 200
            and any(each["arrival_s"] <= row["arrival_s"] < each["admitted_s"] for each in large)
        ]
        assert len(found) > 50
        return np.percentile(found, 95) * 1000

    beside, alone = ttft_ms("large"), ttft_ms("others")
    assert beside <= 2 * alone
    assert f"TTFT at p95 is {beside:.0f} ms, and {alone:.0f} ms without" in text
    for before, after in zip(large[::2], large[1::2], strict=True):
        assert after["admitted_s"] <= before["finished_s"] + 0.05
    longest = max(row["admitted_s"] - row["arrival_s"] for row in large)
    assert f"waits at most {longest:.1f} s" in text
    slowest = max(row["ttft"] for row in rows["large"] if row["prompt_tokens"] == 200)
    assert f"here up to {slowest:.1f} s" in text
