import pytest

from tools.measure.report import percentile


def test_a_percentile_is_a_value_that_was_measured():
    values = [float(one) for one in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7


def test_a_percentile_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 0.5)
