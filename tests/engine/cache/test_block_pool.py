import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.cache.block_pool import BlockPool, OutOfBlocksError


@given(st.lists(st.integers(0, 9), max_size=40), st.randoms())
def test_every_block_has_one_owner_and_none_is_lost(sizes, random):
    pool = BlockPool(20, 16)
    owned = []
    for size in sizes:
        if size <= pool.num_free:
            owned.append(list(pool.allocate(size)))
        elif owned:
            pool.free(owned.pop(random.randrange(len(owned))))
        taken = [block for blocks in owned for block in blocks]
        assert len(taken) == len(set(taken))
        assert len(taken) + pool.num_free == 20
        assert pool.usage == pytest.approx(len(taken) / 20)


def test_asking_for_more_than_is_free_takes_nothing():
    pool = BlockPool(4, 16)
    pool.allocate(3)
    with pytest.raises(OutOfBlocksError, match="2 blocks wanted, 1 free"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_freeing_twice_is_an_error():
    pool = BlockPool(4, 16)
    blocks = list(pool.allocate(2))
    pool.free(blocks)
    with pytest.raises(ValueError, match="freed twice"):
        pool.free(blocks)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert BlockPool(4, 16).blocks_for(tokens) == blocks
