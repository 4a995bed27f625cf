"""Figures of `python -m tools.bench.gateway isolation`."""

from tools.bench.gateway.isolation import Isolated, table


def test_latencies_beside_a_flood_are_compared_with_the_same_arm_alone():
    alone = Isolated("gateway", False, 60, 0, 0.1, 0.2, 0.4, 0.5, 0.0)
    beside = Isolated("gateway", True, 60, 0, 0.11, 0.3, 0.8, 1.0, 5.0)
    lines = table([alone, beside])
    assert lines[-1].split() == "gateway yes 60 0 0.110 1.10 0.300 1.50 0.800 2.00 1.000 2.00 5.00".split()
