import pytest

from inflight_contract.errors import ApiError
from inflight_contract.limits import changed_limits
from inflight_settings.limits import Limits, LimitsInForce, PartialLimits

CAPACITY = Limits(256, 8192)
CURRENT = LimitsInForce(Limits(64, 1024), 5)


def test_what_is_not_given_stays():
    assert changed_limits(CURRENT, CAPACITY, PartialLimits(32), 6) == LimitsInForce(Limits(32, 1024), 6)


@pytest.mark.parametrize("value", [0, -1, 257])
def test_a_value_out_of_range_is_refused_by_name_and_with_the_range(value):
    with pytest.raises(ApiError, match=r"max_num_seqs must be between 1 and 256.*not"):
        changed_limits(CURRENT, CAPACITY, PartialLimits(value))


def test_an_older_revision_is_refused_and_the_same_one_is_not():
    with pytest.raises(ApiError, match="revision 4 is older than revision 5"):
        changed_limits(CURRENT, CAPACITY, PartialLimits(1), 4)
    assert changed_limits(CURRENT, CAPACITY, PartialLimits(8), 5).limits.max_num_seqs == 8
