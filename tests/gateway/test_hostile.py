"""A few thousand hostile requests against a whole gateway; `python -m tests.gateway.hostile` plays more."""

from __future__ import annotations

from tests.gateway.hostile.gateway_run import hostile_gateway


async def test_hostile_requests_cause_no_5xx_no_crash_and_no_leak(tmp_path):
    async with hostile_gateway(tmp_path) as hostile:
        report = await hostile.run(2500, seed=14, clients=48)
    assert report.faults == {}
    assert sum(report.counts.values()) == 2500
    for program in report.used[-1]:
        # Pools fill up first: a leak of bytes shows in a longer run alone.
        assert report.growth(program).memory_mib < 40
        assert report.growth(program).files < 100
