"""A few thousand hostile requests against a whole gateway; `python -m tests.gateway.hostile` plays more."""

from __future__ import annotations

from tests.gateway.hostile import beside
from tests.gateway.hostile.gateway_run import hostile_gateway

NOISE_MS = 500.0
"""The bound of a 99th percentile within so few seconds, besides what waits for a core can add to it where other tests
run. A gateway that the attacks stop takes seconds, or does not answer."""


async def test_hostile_requests_cause_no_5xx_no_crash_and_no_leak(tmp_path):
    async with hostile_gateway(tmp_path) as hostile:
        report = await hostile.run(2500, seed=14, clients=48)
    assert report.faults == {}
    assert sum(report.counts.values()) == 2500
    for program in report.used[-1]:
        # Pools fill up first: a leak of bytes shows in a longer run alone.
        assert report.growth(program).memory_mib < 40
        assert report.growth(program).files < 100


async def test_a_client_with_a_key_is_served_beside_fifty_attacks_of_each_kind_a_second(tmp_path):
    found = await beside.run(tmp_path, alone_s=2, flood_s=12, rate=50)
    assert found.faults == {}
    assert found.beside.p99_ms < 2 * found.alone.p99_ms + NOISE_MS + found.beside.waited_ms
