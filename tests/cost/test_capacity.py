"""The capacity of a replica, by the cost model."""

from inflight_cost.capacity import Margins, Replica, Targets, Workload, largest_rate, steady
from inflight_cost.model import CostModel
from inflight_settings.limits import Limits

H100 = Replica(CostModel(5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9), 400_000)
CONVERSATION = Workload(1157, 1157, 1603**2, 211, 2 * 105 * 211)
TARGETS = Targets(0.5, 0.05)


def test_the_decodes_of_a_steady_replica_obey_littles_law():
    found = steady(H100, CONVERSATION, 8.0, Limits(256, 2048))
    assert abs(found.running - 8.0 * 211 * found.tpot) < 1e-6 * found.running


def test_a_rate_above_what_prefill_can_do_has_no_steady_state():
    assert steady(H100, CONVERSATION, 50.0, Limits(256, 2048)).tpot == float("inf")


def test_smaller_budgets_and_tighter_targets_carry_less():
    limits = Limits(256, 2048)
    most = largest_rate(H100, CONVERSATION, TARGETS, limits)
    assert 8 < most < 20
    assert largest_rate(H100, CONVERSATION, TARGETS, Limits(256, 256)) < most
    assert largest_rate(H100, CONVERSATION, Targets(0.5, 0.012), limits) < most
    assert largest_rate(H100, CONVERSATION, TARGETS, limits, Margins(prefill=0.4)) < most


def test_the_ttft_target_of_a_prompt_grows_with_its_tokens():
    assert Targets(0.5, 0.05, 60e-6).ttft_of(100_000) == 6.5
    assert Targets(0.5).ttft_of(100_000) == 0.5
    assert Targets(None, 0.05, 60e-6).ttft_of(100_000) is None
