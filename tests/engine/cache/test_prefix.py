import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.cache.prefix import block_hashes, root_hash

names = st.text(st.characters(), max_size=6)  # Lone surrogates too.
ROOT = root_hash("", "")


def tokens(*numbers):
    return np.array(numbers, np.int32)


@given(names, names, names, names)
def test_roots_are_equal_only_for_equal_tenant_and_salt(tenant, salt, other_tenant, other_salt):
    assert (root_hash(tenant, salt) == root_hash(other_tenant, other_salt)) == (
        (tenant, salt) == (other_tenant, other_salt)
    )


def test_what_ends_the_tenant_is_not_what_begins_the_salt():
    roots = {root_hash("ab", "c"), root_hash("a", "bc"), root_hash("abc", ""), root_hash("", "abc")}
    assert len(roots) == 4


def test_a_tenant_from_json_with_half_a_character_has_a_root_of_its_own():
    assert len(root_hash("\ud800", "\udfff")) == 16
    assert root_hash("\ud800", "") != root_hash("\ud801", "")


@pytest.mark.parametrize(("num_tokens", "num_hashes"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_are_hashed(num_tokens, num_hashes):
    hashes = block_hashes(np.arange(num_tokens, dtype=np.int32), 4, ROOT)
    assert [len(content) for content in hashes] == [16] * num_hashes


@given(
    st.lists(st.integers(0, 2), max_size=24),
    st.lists(st.integers(0, 2), max_size=24),
    st.integers(1, 5),
)
def test_hashes_are_equal_as_far_as_the_blocks_are_equal_from_the_start_on(first, second, size):
    pairs = zip(block_hashes(tokens(*first), size, ROOT), block_hashes(tokens(*second), size, ROOT), strict=False)
    for index, (one, other) in enumerate(pairs):
        end = (index + 1) * size
        assert (one == other) == (first[:end] == second[:end])


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40), st.integers(1, 5), st.integers(0, 8))
def test_a_sequence_can_be_hashed_in_parts(numbers, size, split):
    whole = block_hashes(tokens(*numbers), size, ROOT)
    split = min(split, len(whole))
    head = block_hashes(tokens(*numbers[: split * size]), size, ROOT)
    assert head + block_hashes(tokens(*numbers[split * size :]), size, [ROOT, *head][-1]) == whole


def test_tenants_share_nothing():
    numbers = np.arange(16, dtype=np.int32)
    assert set(block_hashes(numbers, 4, root_hash("a", ""))).isdisjoint(block_hashes(numbers, 4, root_hash("b", "")))


def test_the_memory_layout_of_the_tokens_does_not_matter():
    column = np.arange(24, dtype=np.int32).reshape(12, 2)[:, 0]
    assert block_hashes(column, 4, ROOT) == block_hashes(column.copy(), 4, ROOT)
