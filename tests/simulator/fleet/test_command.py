"""`inflight-simulate fleet` and the files that it reads."""

import gzip
import json

import numpy as np
import pytest

from inflight_operator.decide.replicas.start_up import Phases
from inflight_settings.limits import Limits
from inflight_simulator.cli import main
from inflight_simulator.errors import InputError
from inflight_simulator.fleet.commands.flags import limits, seconds, start_up
from inflight_simulator.fleet.commands.replica_file import read_replica
from inflight_simulator.fleet.config import ReplicaModel, undivided
from inflight_simulator.fleet.requests import read_requests
from inflight_simulator.trace_files import read_arrivals

ROWS = "arrival_s,prompt_tokens,output_tokens\n0.5,300,20\n0.1,0,5\n2,40,1\n"


@pytest.fixture
def arrivals(tmp_path):
    path = tmp_path / "arrivals.csv"
    path.write_text(ROWS)
    return path


def run(capsys, *arguments):
    status = main(["fleet", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_json_has_all_numbers(arrivals, capsys):
    status, out, _ = run(capsys, arrivals, "--scaler", "fixed:2", "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert found["requests"] == 3
    assert found["attainment"] == 1.0
    assert found["replica_hours"] == pytest.approx(2 * 1.9 / 3600)
    assert found["ttft"].keys() == {"mean", "p50", "p95", "p99"}
    assert found["replicas"] == [[0.1, 2, 2, 2]]
    assert found["cost"] is None
    assert {"reversals", "longest_out_of_target_s", "tpot", "decisions"} < found.keys()


def test_json_without_a_file_goes_to_standard_output(arrivals, capsys):
    status, out, _ = run(capsys, arrivals, "--scaler", "fixed:2", "--json")
    assert (status, json.loads(out)["requests"]) == (0, 3)


@pytest.mark.parametrize("flag", ["--ttft", "--tpot", "--long-ttft"])
def test_a_target_of_nothing_is_refused(arrivals, capsys, flag):
    with pytest.raises(SystemExit):
        run(capsys, arrivals, "--scaler", "llmd-slo", flag, "0")
    assert f"argument {flag}: must be at least 1ms, not 0" in capsys.readouterr().err


def test_the_table_says_the_same_and_a_file_takes_the_numbers(arrivals, capsys, tmp_path):
    file = tmp_path / "run.json"
    status, out, _ = run(capsys, arrivals, "--scaler", "autopilot", "--json", file, "--decisions")
    assert status == 0
    assert "attainment              100.00% of requests kept their targets" in out
    assert "The operator decided nothing." in out
    assert json.loads(file.read_text())["scaler"] == "autopilot"


def test_a_price_gives_a_cost(arrivals, capsys, tmp_path):
    replica = tmp_path / "replica.json"
    cost = {"base_s": 0.01, "decode_seq_s": 0, "prefill_token_s": 1e-5, "decode_kv_token_s": 0}
    cost["prefill_context_token_s"] = 0
    replica.write_text(json.dumps({"cost": cost, "kv_tokens": 4000, "price": 3.6}))
    status, out, _ = run(capsys, arrivals, "--scaler", "fixed:1", "--replica", replica, "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert found["cost"] == pytest.approx(1.9 * 1e-3)
    assert found["output_tokens_per_cost"] == pytest.approx(26 / 1.9e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scaler", "hpa"], "there is no scaler 'hpa'"),
        (["--scaler", "autopilot", "--initial", "9", "--max-replicas", "4"], "--initial 9 must be between"),
        (["--scaler", "autopilot", "--min-replicas", "9", "--max-replicas", "4"], "--max-replicas 4"),
        (["--scaler", "fixed:1", "--replica", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_flags_are_named(arrivals, capsys, arguments, says):
    status, _, err = run(capsys, arrivals, *arguments)
    assert status == 2
    assert says in err


@pytest.mark.parametrize("text", ["256/2048", "fixed", "fixed:0/5", "autopilot:", "best"])
def test_limits_that_are_none_are_refused(arrivals, capsys, text):
    with pytest.raises(SystemExit):
        run(capsys, arrivals, "--scaler", "fixed:1", "--limits", text)
    assert "--limits" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["-1", "soon", "ready=1", "image=1,image=2", "image=", "image=-1", "image=1,"])
def test_start_ups_that_are_none_are_refused(arrivals, capsys, text):
    with pytest.raises(SystemExit):
        run(capsys, arrivals, "--scaler", "fixed:1", f"--start-up={text}")
    assert "--start-up" in capsys.readouterr().err


def test_limits_and_seconds_are_read():
    assert limits("fixed:64/1024") == (False, Limits(64, 1024))
    assert limits("autopilot") == (True, Limits(256, 2048))
    assert limits("autopilot:32/512") == (True, Limits(32, 512))
    assert [seconds("500ms"), seconds("0.5s"), seconds("2")] == [0.5, 0.5, 2.0]
    assert start_up("1500ms") == undivided(1.5)
    assert start_up("endpoints=0.5,weights=2500ms") == Phases(0.0, 0.0, 2.5, 0.0, 0.5)


def test_the_help_says_what_scalers_there_are(capsys):
    with pytest.raises(SystemExit):
        main(["fleet", "--help"])
    text = capsys.readouterr().out
    for word in ("hpa-queue:T", "autopilot", "oracle", "kv_tokens", "longest time out of"):
        assert word in text


def test_requests_come_in_order_of_arrival_from_any_format(arrivals, tmp_path):
    found = read_requests(arrivals)
    assert found.arrival_s.tolist() == [0.1, 0.5, 2.0]
    assert found.prompt_tokens.tolist() == [1, 300, 40]
    packed = tmp_path / "arrivals.csv.gz"
    packed.write_bytes(gzip.compress(ROWS.encode()))
    other = tmp_path / "more_columns.csv"
    other.write_text("arrival_s,prompt_tokens,output_tokens,class\n0.5,300,20,a\n0.1,0,5,b\n2,40,1,\n")
    for path in (packed, other):
        again = read_requests(path)
        for column in ("arrival_s", "prompt_tokens", "output_tokens"):
            np.testing.assert_array_equal(getattr(again, column), getattr(found, column))
    assert len(read_arrivals(packed)) == 3


@pytest.mark.parametrize("row", ["1,2", "x,1,1", "1,1.5,2", "-1,2,3", "1,2,0", "nan,1,1", "1,2,1e12"])
def test_a_bad_row_is_named(tmp_path, row):
    path = tmp_path / "bad.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,1,1\n{row}\n")
    with pytest.raises(InputError, match=r"bad\.csv, line 3"):
        read_requests(path)


def test_a_broken_gzip_file_is_named(tmp_path):
    path = tmp_path / "broken.gz"
    path.write_bytes(gzip.compress(ROWS.encode())[:20])
    with pytest.raises(InputError, match=r"broken\.gz"):
        read_requests(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kv_tokens": 3}, "kv_tokens"),
        ({"host_tokens": 10**10}, "host_tokens"),
        ({"disk_tokens": 400}, "disk_tokens needs host_tokens"),
        ({"disk_tokens": 5, "host_tokens": 400}, "disk_tokens must be 0 or at least block_size"),
        ({"disk_tokens": 400, "host_tokens": 400, "disk_read_token_s": 1e-5}, "needs .* and disk_write_token_s"),
        ({"disk_tokens": -1}, "disk_tokens"),
        ({"disk_write_token_s": 0}, "disk_write_token_s"),
        ({"kv_bytes_per_token": 0}, "kv_bytes_per_token"),
        ({"noise": -1}, "noise"),
        ({"extra": 1}, "extra"),
        ({"cost": {}}, "base_s"),
    ],
)
def test_a_replica_file_that_describes_none_is_refused(tmp_path, change, says):
    path = tmp_path / "replica.json"
    cost = {"base_s": 0.01, "decode_seq_s": 0, "prefill_token_s": 1e-5, "decode_kv_token_s": 0}
    cost["prefill_context_token_s"] = 0
    path.write_text(json.dumps({"cost": cost, "kv_tokens": 4000, **change}))
    with pytest.raises(InputError, match=says):
        read_replica(path)


def test_a_replica_file_needs_no_more_than_cost_and_cache(tmp_path):
    path = tmp_path / "replica.json"
    cost = {"base_s": 0.01, "decode_seq_s": 0, "prefill_token_s": 1e-5, "decode_kv_token_s": 0}
    cost["prefill_context_token_s"] = 0
    path.write_text(json.dumps({"cost": cost, "kv_tokens": 4000}))
    found, default = read_replica(path), ReplicaModel()
    assert (found.block_size, found.noise, found.capacity) == (default.block_size, default.noise, default.capacity)
