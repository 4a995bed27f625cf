"""Figures of `python -m tools.bench.gateway overhead`."""

from dataclasses import replace

from tools.bench.gateway.__main__ import overhead_tables
from tools.bench.gateway.overhead import Latency, Overhead, Tokens, _turns

_ONE = Overhead(
    latencies=[
        Latency("direct", 8, 0.1, 0.2, 9000.0, {}),
        Latency("gateway", 8, 1.0, 2.0, 2000.0, {"picker": 0.2, "relay": 0.2, "envoy": 0.1}),
    ],
    tokens=Tokens(12_800, 12_700, {"relay": 10.0, "envoy": 10.0}),
    pick_us={4: 40.0, 500: 80.0},
    streams=2000,
    memory_mib={"relay": 100.0},
    stream_memory_mib={"relay": 30.0, "envoy": 70.0},
    longest_gap_s=0.5,
    gap_ms=(21.0, 30.0),
    direct_gap_ms=(20.5, 25.0),
)


def test_gateways_take_turns_both_ways_round():
    assert list(_turns(["this", "other"], 3)) == ["this", "other", "other", "this", "this", "other"]


def test_a_ratio_above_one_is_better_whichever_direction_is_better():
    slower = [replace(_ONE.latencies[1], cpu_ms={"picker": 1.25})]
    other = replace(_ONE, latencies=slower, pick_us={4: 20.0, 500: 800.0}, stream_memory_mib={"envoy": 150.0})
    ratios = {line[:37].strip(): line.split()[-1] for line in overhead_tables({"this": _ONE, "old": other})[-8:]}
    assert ratios["tokens/s a core"] == "1.00x"
    assert ratios["requests/s a core, 8 at once"] == "2.50x"
    assert ratios["pick of 4, us"] == "0.50x"
    assert ratios["pick of 500, us"] == "10.00x"
    assert ratios["memory of 2000 streams, MiB"] == "1.50x"


def test_one_gateway_alone_has_no_ratios():
    assert not any("ratio" in line for line in overhead_tables({"this": _ONE}))
