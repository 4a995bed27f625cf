import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from inflight_simulator.cli import main
from tests.simulator.support import DATA, EXAMPLES, simulate

FOUR = str(EXAMPLES / "four.csv")
KEYS = (
    "num_requests steps makespan_s throughput_rps throughput_tokens_s service_latency e2e_latency ttft tpot "
    "preemptions loaded_blocks slot_efficiency max_running max_kv_usage"
).split()


def status(*arguments):
    """Runs the command; returns its exit code, also where argparse ends the program."""
    try:
        return main(list(arguments))
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("more", [[], ["--batching", "static"], ["--no-chunked-prefill"], ["--cost", "unit"]])
def test_json_is_one_object_with_exactly_these_keys(capsys, more):
    result = simulate(capsys, "engine", FOUR, *more)
    assert list(result) == KEYS
    for key in ("service_latency", "e2e_latency", "ttft", "tpot"):
        assert list(result[key]) == ["mean", "p50", "p95", "p99"]
    assert result["num_requests"] == 4


def test_compare_prints_one_such_object_for_each_batching(capsys):
    result = simulate(capsys, "compare", FOUR)
    assert list(result) == ["static", "continuous_no_chunked_prefill", "continuous"]
    assert all(list(summary) == KEYS for summary in result.values())
    assert list(simulate(capsys, "compare", FOUR, "--cost", "unit")) == ["static", "continuous"]


def test_the_table_says_when_each_of_few_requests_leaves(capsys):
    assert main(["engine", FOUR, "--max-num-batched-tokens", "512"]) == 0
    out = capsys.readouterr().out
    leaves = {line[0]: float(line.split()[-1]) for line in out.splitlines() if re.match("[A-D] ", line)}
    assert leaves["B"] < leaves["D"] < leaves["A"] < leaves["C"]


def test_compare_shows_that_short_requests_wait_for_the_longest_only_in_static_batches(capsys):
    assert main(["compare", FOUR, "--max-num-batched-tokens", "512"]) == 0
    out = capsys.readouterr().out
    leaves = {line[0]: line.split()[4:] for line in out.partition("leaves")[2].splitlines() if re.match("[A-D] ", line)}
    assert leaves["B"][0] == leaves["C"][0] == leaves["D"][0]
    for batching in (1, 2):
        assert float(leaves["B"][batching]) < float(leaves["D"][batching]) < float(leaves["A"][batching])


def test_requests_that_never_fit_are_said_on_standard_error(capsys):
    assert main(["engine", FOUR, "--max-model-len", "1000", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["num_requests"] == 2
    assert "2 of 4 requests can never fit and were refused; the first is number 0: 5000 prompt tokens" in printed.err
    assert main(["engine", FOUR, "--num-kv-blocks", "1"]) == 1
    assert "4 of 4 requests can never fit" in capsys.readouterr().err


def test_a_row_for_each_request_is_written(tmp_path):
    path = tmp_path / "requests.csv"
    assert main(["engine", FOUR, "--max-model-len", "2200", "--requests", str(path)]) == 0
    rows = list(csv.DictReader(path.open()))
    assert [row["request"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[0]["admitted_s"] == "" != rows[1]["admitted_s"]
    for row in rows[1:]:
        assert float(row["e2e_latency"]) == pytest.approx(float(row["finished_s"]) - float(row["arrival_s"]), abs=1e-5)


def test_public_traces_run(capsys):
    azure = simulate(capsys, "engine", str(DATA / "azure_llm_2023_conv_50.csv"), "--speed", "10")
    mooncake = simulate(capsys, "engine", str(DATA / "mooncake_conversation_50.jsonl"), "--every", "5")
    assert (azure["num_requests"], mooncake["num_requests"]) == (50, 10)
    without = simulate(
        capsys, "engine", str(DATA / "mooncake_conversation_50.jsonl"), "--every", "5", "--no-prefix-caching"
    )
    assert without["ttft"]["mean"] > mooncake["ttft"]["mean"]


@pytest.mark.parametrize(
    "more",
    [
        ["--scheduling-policy", "sjf"],
        ["--scheduling-policy", "priority", "--priority-aging", "5"],
        ["--scheduling-policy", "fair"],
        ["--scheduling-policy", "deadline", "--ttft-target", "0.5", "--late-share", "0.2"],
        ["--ttft-target", "0.5", "--ttft-per-1k-tokens", "0.06"],
        ["--num-kv-blocks", "130", "--block-size", "64", "--kv-headroom", "0", "--preemption", "recompute"],
        ["--num-kv-blocks", "100", "--block-size", "64", "--preemption", "swap", "--swap-space-blocks", "100"],
        ["--preemption-victim", "longest_first", "--num-kv-blocks", "100", "--block-size", "64"],
        ["--cost-base-ms", "20", "--cost-prefill-token-us", "100"],
        ["--class-weight", "default=3"],
        ["--duration", "0.1", "--scale-prompt", "0.5", "--scale-output", "2", "--speed", "3"],
    ],
)
def test_each_flag_is_taken(capsys, more):
    assert simulate(capsys, "engine", FOUR, *more)["num_requests"] > 0


def test_a_target_orders_requests_by_deadline_unless_another_policy_is_named(capsys, tmp_path):
    # One slot, and a second of work before the others: the second is late when it is free, the third is not.
    arrivals = tmp_path / "arrivals.csv"
    arrivals.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,200\n0.1,100,50\n0.9,100,50\n")
    requests = tmp_path / "requests.csv"

    def order(*flags):
        one_slot = ["--max-num-seqs", "1", *flags]
        assert status("engine", str(arrivals), *one_slot, "--requests", str(requests)) == 0
        with requests.open() as file:
            rows = list(csv.DictReader(file))
        return [int(row["request"]) for row in sorted(rows, key=lambda row: float(row["first_token_s"]))]

    assert order() == [0, 1, 2]
    assert order("--ttft-target", "0.5") == [0, 2, 1]
    assert order("--ttft-target", "0.5", "--late-share", "1") == [0, 1, 2]
    assert order("--ttft-target", "0.5", "--ttft-per-1k-tokens", "20") == [0, 1, 2], "2 s more: neither is late"
    assert order("--ttft-target", "0.5", "--scheduling-policy", "fcfs") == [0, 1, 2]


def test_cost_constants_and_trace_scaling_change_the_result(capsys):
    first = simulate(capsys, "engine", FOUR)
    assert simulate(capsys, "engine", FOUR, "--cost-base-ms", "9.6")["makespan_s"] > 1.5 * first["makespan_s"]
    halved = simulate(capsys, "engine", FOUR, "--scale-output", "0.5")
    assert halved["makespan_s"] < 0.6 * first["makespan_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engine", "nowhere.csv"], "nowhere.csv: No such file or directory"),
        (["engine"], "ARRIVALS"),
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["engine", FOUR, "--max-num-seqs", "0"], "--max-num-seqs: must be between 1 and 100000, not 0"),
        (["engine", FOUR, "--kv-headroom", "2"], "--kv-headroom: must be between 0 and 0.9, not 2"),
        (["engine", FOUR, "--speed", "inf"], "--speed: must be at least 1e-06, not inf"),
        (["engine", FOUR, "--batching", "dynamic"], "--batching"),
        (
            ["engine", FOUR, "--speed", "1e-6", "--every", "1", "--scale-output", "1e9"],
            "--scale-output makes a request of",
        ),
        (["engine", FOUR, "--scale-prompt", "1e9"], "--scale-prompt makes a request of 5000000000000 tokens"),
        (
            ["engine", FOUR, "--max-num-seqs", "99999999999"],
            "--max-num-seqs: must be between 1 and 100000, not 99999999999",
        ),
        (["engine", FOUR, "--num-kv-blocks", "99999999999999"], "--num-kv-blocks: must be between 1 and 1e+08"),
        (["engine", FOUR, "--cost", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["engine", FOUR, "--cost", "unit", "--cost-base-ms", "3"], "leave out --cost-base-ms"),
        (["engine", FOUR, "--class-weight", "chat=2"], "no request has the class 'chat'"),
        (["engine", FOUR, "--class-weight", "chat"], "NAME=WEIGHT"),
        (["engine", FOUR, "--plot-window", "5:1"], "FROM:UNTIL"),
        (["engine", FOUR, "--plot", "x.png", "--plot-window", "500:600"], "nothing happens from 500 to 600 s"),
        (["engine", FOUR, "--cost", "unit", "--plot-window", "0:1"], "--plot-window is of --plot"),
    ],
)
def test_wrong_usage_is_exit_status_2_with_what_is_wrong(capsys, arguments, message):
    assert status(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_exit_status_1(capsys, tmp_path):
    for flag in ("--plot", "--requests"):
        path = tmp_path / "no" / "such"
        assert status("engine", FOUR, flag, str(path)) == 1
        assert f"{path}: No such file or directory" in capsys.readouterr().err


def test_flags_without_effect_are_said(capsys):
    assert main(["engine", FOUR, "--batching", "static", "--max-num-batched-tokens", "64", "--no-prefix-caching"]) == 0
    assert "static batching has no use for --max-num-batched-tokens, --no-prefix-caching" in capsys.readouterr().err
    assert main(["engine", FOUR, "--cost", "unit", "--no-chunked-prefill"]) == 0
    assert "there is no use for --no-chunked-prefill" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["engine"], ["compare"]])
def test_the_example_in_help_works(capsys, command, monkeypatch, tmp_path):
    assert status(*command, "--help") == 0
    example = capsys.readouterr().out.rpartition("example:")[2]
    words = shlex.split(" ".join(example.split()))
    assert words[0] == "inflight-simulate"
    words = [str(EXAMPLES / Path(word).name) if word.startswith("simulator/examples") else word for word in words]
    monkeypatch.chdir(tmp_path)
    assert main(words[1:]) == 0


def test_the_simulator_loads_no_torch():
    script = "import sys; import inflight_simulator.cli, inflight_simulator.plot; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
