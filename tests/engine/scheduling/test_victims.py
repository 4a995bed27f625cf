import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.preemption import VICTIMS, lowest

CANDIDATES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 5), st.integers(0, 3)), min_size=1, unique_by=lambda each: each[0]
)
RULES = {
    "last_arrived": lambda order, num_tokens, num_preemptions: order,
    "longest_first": lambda order, num_tokens, num_preemptions: (num_tokens, order),
    "most_preempted_last": lambda order, num_tokens, num_preemptions: (-num_preemptions, order),
}


def choose(name, candidates):
    order, num_tokens, num_preemptions = np.array(candidates, np.int64).T
    return VICTIMS[name](order, num_tokens.astype(np.int32), num_preemptions)


@pytest.mark.parametrize("name", VICTIMS)
@given(candidates=CANDIDATES)
def test_the_victim_is_the_one_the_rule_puts_first(name, candidates):
    assert candidates[choose(name, candidates)] == max(candidates, key=lambda each: RULES[name](*each))


def test_the_last_to_arrive_gives_way_wherever_it_stands():
    assert choose("last_arrived", [(3, 900, 5), (8, 1, 0), (5, 100, 0)]) == 1


def test_the_longest_gives_way_and_of_equals_the_last_to_arrive():
    assert choose("longest_first", [(9, 10, 0), (2, 70, 4), (5, 70, 0), (7, 30, 0)]) == 2


def test_the_most_preempted_is_spared_until_the_others_were_hit_as_often():
    assert choose("most_preempted_last", [(1, 10, 1), (2, 10, 1), (9, 10, 2)]) == 1
    assert choose("most_preempted_last", [(1, 10, 2), (2, 10, 2), (9, 10, 2)]) == 2


def test_the_index_is_a_plain_int():
    assert all(type(choose(name, [(0, 1, 0)])) is int for name in VICTIMS)


def test_the_default_is_a_rule_that_exists():
    assert SchedulerConfig.__dataclass_fields__["preemption_victim"].default in VICTIMS


def test_of_equals_the_lowest_are_those_of_the_tenant_with_the_most_blocks():
    assert lowest([(-1.0, 5, 3), (-1.0, 5, 7), (-1.0, 2, 9), (-1.0, 5, 7)]).tolist() == [1, 3]


def test_the_lowest_are_all_of_the_least_weight_and_of_these_of_the_largest_priority():
    assert lowest([(-4.0, 9, 0), (-1.0, 2, 9), (-1.0, 5, 0), (-1.0, 5, 0), (-2.0, 9, 9)]).tolist() == [2, 3]
    assert lowest([(-1.0, 0, 0)]).tolist() == [0]
