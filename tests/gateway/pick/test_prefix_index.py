"""The index of prompt blocks that replicas' prefix caches should hold."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.pick.prefix_index import PrefixIndex, _Table


def chain(name, length):
    """Hashes of a prompt's leading blocks."""
    return tuple(hash((name, place)) for place in range(length))


def matched(index, address, prefix):
    [blocks] = index.matched((address,), prefix)
    return blocks


def test_the_longest_leading_run_that_was_sent_is_found_and_only_at_that_replica():
    index = PrefixIndex()
    prompt = chain("a", 10)
    index.add("one", prompt[:6])
    assert matched(index, "one", prompt) == 6
    assert matched(index, "one", prompt[:3]) == 3
    assert matched(index, "one", chain("b", 10)) == 0
    assert matched(index, "two", prompt) == 0
    assert index.matched(["one", "two"], prompt) == [6, 0]


def test_no_prefix_matches_nothing():
    index = PrefixIndex()
    index.add("one", ())
    assert matched(index, "one", ()) == 0


def test_a_replica_that_is_gone_is_forgotten():
    index = PrefixIndex()
    index.add("one", chain("a", 4))
    index.forget("one")
    index.forget("never known")
    assert matched(index, "one", chain("a", 4)) == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=30),
)
def test_what_was_sent_last_is_found_whole_and_nothing_is_found_that_was_not_sent(sends):
    index = PrefixIndex()
    longest = {}
    for name, length in sends:
        index.add("one", chain(name, length), blocks=4096)
        longest[name] = max(length, longest.get(name, 0))
        assert matched(index, "one", chain(name, length)) == length
    for name, length in longest.items():
        assert matched(index, "one", chain(name, 60)) <= length


def test_the_least_recently_sent_are_forgotten_once_the_kv_cache_is_full():
    index = PrefixIndex()
    blocks, each = 1024, 16
    for name in range(10 * blocks // each):
        index.add("one", chain(name, each), blocks)
        index.add("one", chain("kept", each), blocks)
    last = [matched(index, "one", chain(name, each)) for name in range(600, 640)]
    first = [matched(index, "one", chain(name, each)) for name in range(100)]
    assert sum(first) == 0
    assert sum(last) > 0.6 * 40 * each
    assert matched(index, "one", chain("kept", each)) == each


def test_a_prompt_longer_than_the_kv_cache_keeps_its_leading_blocks():
    index = PrefixIndex()
    index.add("one", chain("a", 10_000), blocks=64)
    assert 1 <= matched(index, "one", chain("a", 10_000)) <= 64


def test_a_kv_cache_of_another_size_starts_empty():
    index = PrefixIndex()
    index.add("one", chain("a", 4), blocks=64)
    index.add("one", chain("b", 4), blocks=6400)
    assert matched(index, "one", chain("a", 4)) == 0
    assert matched(index, "one", chain("b", 4)) == 4


def test_hashes_of_any_size_and_sign_can_be_told_apart():
    index = PrefixIndex()
    prompt = (0, -1, 2**64 + 5, 2**200, -(2**63))
    index.add("one", prompt)
    assert matched(index, "one", prompt) == len(prompt)


def test_a_hundred_replicas_with_a_hundred_thousand_blocks_each_take_about_eight_bytes_a_block():
    index = PrefixIndex()
    blocks, replicas = 100_000, [f"10.0.0.{number}:8000" for number in range(100)]
    for address in replicas:
        index.add(address, chain(address, 100), blocks)
    size = sum(sys.getsizeof(table.entries) for table in index._tables.values())
    assert size < 1.1 * 8 * blocks * len(replicas)
    assert index.matched(replicas, chain(replicas[7], 200)) == [100 * (address == replicas[7]) for address in replicas]


@pytest.mark.parametrize("blocks", [256, 100_000])
def test_a_look_up_takes_the_logarithm_of_the_blocks_found_whatever_the_index_holds(monkeypatch, blocks):
    index, prompt, probed = PrefixIndex(), chain("prompt", 200), []
    for name in range(20):
        index.add("one", chain(name, 200), blocks)
    index.add("one", prompt, blocks)
    holds = _Table.holds
    monkeypatch.setattr(_Table, "holds", lambda table, key: probed.append(key) or holds(table, key))
    assert matched(index, "one", prompt) > 100
    assert len(probed) <= 2 * 8
