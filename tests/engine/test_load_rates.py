import pytest

from inflight_engine.cache.loading import LoadRates
from inflight_engine.load_rates import LoadRateMeter


def test_the_first_prefill_step_tells_the_rates():
    assert LoadRateMeter(5000.0).observe(100, 20, 0.5) == LoadRates(prefill=240.0, copy=5000.0)


@pytest.mark.parametrize("step", [(0, 8, 0.1), (8, 8, 0.1), (100, 0, 0.0)])
def test_steps_that_do_not_mainly_prefill_tell_nothing_of_it(step):
    assert LoadRateMeter(5000.0).observe(*step) is None


def test_small_changes_are_not_told_and_large_ones_are():
    meter = LoadRateMeter(5000.0)
    meter.observe(100, 0, 1.0)
    assert meter.observe(110, 0, 1.0) is None
    told = [rates for _ in range(20) if (rates := meter.observe(200, 0, 1.0)) is not None]
    assert 1 < len(told) < 10
    assert told[-1].prefill == pytest.approx(200, rel=0.2)
