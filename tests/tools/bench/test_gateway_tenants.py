"""Figures of `python -m tools.bench.gateway tenants`."""

from tools.bench.gateway.isolation import Isolated
from tools.bench.gateway.limits import Limited, Limits, Rotated, most_in
from tools.bench.gateway.tenants import Tenancy, table


def test_most_in_any_interval_excludes_its_end():
    assert most_in([], 60.0) == 0
    assert most_in([0.0, 1.0, 60.0, 60.5, 61.0], 60.0) == 3
    assert most_in([0.0, 59.9], 60.0) == 2


def test_latencies_beside_a_flood_are_compared_with_the_same_arm_alone():
    limits = Limits([Limited("requests", 600, 1800, [600], 600, 1200, 0, 0)], Rotated(3, 60, 0, 0, 0.5, 0.6))
    alone = Isolated("gateway", False, 60, 0, 0.1, 0.2, 0.4, 0.5, 0.0)
    beside = Isolated("gateway", True, 60, 0, 0.11, 0.3, 0.8, 1.0, 5.0)
    lines = table(Tenancy(limits, [alone, beside]))
    assert lines[-1].split() == "gateway yes 60 0 0.110 1.10 0.300 1.50 0.800 2.00 1.000 2.00 5.00".split()
