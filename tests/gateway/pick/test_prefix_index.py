"""The index of prompt blocks that replicas' prefix caches should hold."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.pick import prefix_index
from inflight_gateway.pick.prefix_index import STRIDE, WAYS, IndexMemory, PrefixIndex, _Table


def chain(name, length):
    """Hashes of a prompt's leading blocks."""
    return tuple(hash((name, place)) for place in range(length))


def matched(index, address, prefix):
    [blocks] = index.matched((address,), prefix).blocks
    return blocks


def test_the_longest_leading_run_that_was_sent_is_found_and_only_at_that_replica():
    index = PrefixIndex()
    prompt = chain("a", 10)
    index.add("one", prompt[:6])
    assert matched(index, "one", prompt) == 6
    assert matched(index, "one", prompt[:3]) == 3
    assert matched(index, "one", chain("b", 10)) == 0
    assert matched(index, "two", prompt) == 0
    assert index.matched(["one", "two"], prompt) == ([6, 0], [0, 0], [0, 0])


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


def memory(index):
    """Bytes of the tables, as allocated."""
    return sum(sys.getsizeof(table.entries) for table in (*index._tables.values(), index._found))


def test_the_index_takes_memory_by_the_blocks_that_were_sent_whatever_the_engines_say_they_hold():
    index = PrefixIndex()
    replicas = [f"10.0.0.{number}:8000" for number in range(100)]
    for address in replicas:
        index.add(address, chain(address, 100), 10**12)
    assert memory(index) < 1.3 * index.size < 2**20
    found = index.matched(replicas, chain(replicas[7], 200)).blocks
    assert found == [100 * (address == replicas[7]) for address in replicas]


def test_a_full_table_takes_eight_bytes_a_block_and_no_engine_has_more_blocks_than_are_plausible(monkeypatch):
    monkeypatch.setattr(prefix_index, "MOST_BLOCKS", 4096)
    index = PrefixIndex()
    for name in range(200):
        index.add("one", chain(name, 100), 10**12)
    table = index._tables["one"]
    assert table.sets == 4096 // WAYS
    assert sys.getsizeof(table.entries) < 1.2 * 8 * 4096
    assert matched(index, "one", chain(199, 100)) == 100


def test_a_service_takes_no_more_than_it_leaves_free_and_gives_it_back():
    index_memory = IndexMemory(2**16)
    first, second = PrefixIndex(index_memory), PrefixIndex(index_memory)
    for index in (first, second):
        for name in range(100):
            index.add("one", chain(name, 100))
        assert index_memory.free >= index.size > 2**13
    assert matched(second, "one", chain(99, 100)) > 90
    for index in (first, second):
        index.forget("one")
        index.drop()
    assert index_memory.free == 2**16


def test_replicas_that_hold_the_most_of_a_prompt_are_found_the_longest_first():
    index, prompt = PrefixIndex(), chain("a", 100)
    for number in range(300):
        index.add(f"other {number}", chain(f"other {number}", 100))
    for length in (20, 60, 5):
        index.add(f"with {length}", prompt[:length])
    index.add("all of it", prompt)
    assert index.longest(prompt, 2) == ["all of it", "with 60"]
    assert set(index.longest(prompt[:5], 8)) == {"all of it", "with 60", "with 20", "with 5"}
    assert index.longest(chain("b", 100), 8) == []
    index.forget("all of it")
    assert index.longest(prompt, 8)[0] == "with 60"


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(1, 40)), min_size=1, max_size=60))
def test_no_replica_holds_much_more_of_a_prompt_than_the_first_that_is_found(sends):
    index, addresses = PrefixIndex(), [str(number) for number in range(31)]
    for number, name, length in sends:
        index.add(str(number), chain(name, length))
    for name in "abc":
        lengths = index.matched(addresses, chain(name, 40)).blocks
        found = index.longest(chain(name, 40), 8)
        assert bool(found) == (max(lengths) > 0)
        if found:
            assert max(index.matched(found, chain(name, 40)).blocks) > max(lengths) - STRIDE


@pytest.mark.parametrize("blocks", [256, 100_000])
def test_a_look_up_takes_the_logarithm_of_the_blocks_found_whatever_the_index_holds(monkeypatch, blocks):
    index, prompt, probed = PrefixIndex(), chain("prompt", 200), []
    for name in range(20):
        index.add("one", chain(name, 200), blocks)
    index.add("one", prompt, blocks)
    set_of = _Table.set_of
    monkeypatch.setattr(_Table, "set_of", lambda table, key: probed.append(key) or set_of(table, key))
    assert matched(index, "one", prompt) > 100
    assert len(probed) <= 2 * 8
