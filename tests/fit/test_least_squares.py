"""Non-negative least squares against trying all sets of factors; outliers, weights and the prior."""

import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_fit.least_squares import fit_relative, non_negative, weighted_median


def best_of_all_sets(rows, target):
    """The least squares that any set of factors reaches with none below 0."""
    best = float(target @ target)
    for chosen in product([False, True], repeat=rows.shape[1]):
        free = np.array(chosen)
        if free.any():
            factors = np.linalg.lstsq(rows[:, free], target, rcond=None)[0]
            if (factors >= 0).all():
                best = min(best, float(((rows[:, free] @ factors - target) ** 2).sum()))
    return best


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 5), start=st.integers(0, 31))
def test_no_set_of_factors_comes_closer_from_whatever_set_it_begins(seed, width, start):
    random = np.random.default_rng(seed)
    rows, target = random.normal(size=(20, width)), random.normal(size=20)
    begin = np.array([bool(start >> each & 1) for each in range(width)])
    factors = non_negative(rows.T @ rows, rows.T @ target, begin)
    assert (factors >= 0).all()
    found = float(((rows @ factors - target) ** 2).sum())
    assert found == pytest.approx(best_of_all_sets(rows, target), rel=1e-6, abs=1e-9)


def test_columns_that_rows_cannot_tell_apart_get_what_the_prior_says():
    columns = np.full((50, 2), 1.0)
    target = np.full(50, 3.0)
    assert fit_relative(columns, target, np.array([1.5, 1.5])) == pytest.approx([1.5, 1.5])
    assert fit_relative(columns, target, np.array([1.0, 2.0])) == pytest.approx([1.0, 2.0])


def test_the_prior_gives_way_to_rows_that_tell_columns_apart():
    random = np.random.default_rng(0)
    columns = random.uniform(1, 10, (200, 2))
    target = columns @ [1.0, 3.0] * random.lognormal(0, 0.03, 200)
    assert fit_relative(columns, target, np.array([100.0, 0.0])) == pytest.approx([1.0, 3.0], rel=0.03)


def test_rows_of_more_weight_win_and_outliers_do_not():
    columns = np.ones((100, 1))
    target = np.where(np.arange(100) < 50, 1.0, 2.0)
    weights = np.where(np.arange(100) < 50, 0.1, 1.0)
    assert fit_relative(columns, target, np.array([1.0]), weights) == pytest.approx([2.0], rel=0.05)
    target[:90] = 1.0
    target[90:] = 50.0
    assert fit_relative(columns, target, np.array([1.0])) == pytest.approx([1.0], rel=0.01)


def test_weighted_median_has_half_of_the_weight_on_each_side():
    assert weighted_median(np.array([3.0, 1.0, 2.0])) == 2.0
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([5.0, 1.0, 1.0])) == 3.0


def test_on_a_noisy_machine_the_mean_is_fitted_and_not_what_lucky_rows_took():
    random = np.random.default_rng(0)
    columns = random.uniform(1, 10, (2000, 2))
    target = columns @ [1.0, 3.0] * random.lognormal(0, 0.3, 2000)
    found = columns @ fit_relative(columns, target, np.array([1.0, 1.0]))
    assert found.mean() == pytest.approx(target.mean(), rel=0.04)


def test_a_fit_takes_no_thread_but_its_own():
    # Threads of a BLAS library would take the CPUs from those that compute a step.
    random = np.random.default_rng(0)
    columns = random.random((2048, 30))
    target = columns @ random.random(30) * random.lognormal(0, 0.1, 2048)
    fit_relative(columns, target, np.ones(30))
    begun, begun_here = time.process_time(), time.thread_time()
    for _ in range(5):
        fit_relative(columns, target, np.ones(30))
    here = time.thread_time() - begun_here
    assert time.process_time() - begun < 1.2 * here
