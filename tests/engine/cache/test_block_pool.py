import numpy as np
import pytest

from inflight_engine.cache.block_pool import BlockPool, OutOfBlocksError


def hashes(*numbers):
    return [number.to_bytes(16, "little") for number in numbers]


def cached(pool, *numbers):
    """Blocks with the content of these numbers, put into the pool as one table that has ended."""
    blocks = pool.allocate(len(numbers))
    pool.register(blocks, hashes(*numbers))
    pool.free(blocks)
    return blocks.tolist()


def test_a_new_pool_gives_its_blocks_in_order_as_int32():
    blocks = BlockPool(4, 16).allocate(3)
    assert blocks.dtype == np.int32
    assert blocks.tolist() == [0, 1, 2]


def test_what_was_allocated_stays_as_it_is_when_the_pool_goes_on():
    pool = BlockPool(4, 16)
    first = pool.allocate(2)
    pool.free(pool.allocate(2))
    pool.allocate(1)
    assert first.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 3


def test_asking_for_more_than_is_free_takes_nothing():
    pool = BlockPool(4, 16)
    pool.allocate(3)
    with pytest.raises(OutOfBlocksError, match="2 blocks wanted, 1 free"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_usage_counts_owned_blocks_only():
    pool = BlockPool(4, 16)
    cached(pool, 1, 2)
    pool.allocate(1)
    assert pool.usage == 0.25
    assert pool.num_free == 3


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert BlockPool(4, 16).blocks_for(tokens) == blocks


@pytest.mark.parametrize("size", [(0, 16), (4, 0)])
def test_a_pool_of_nothing_is_refused(size):
    with pytest.raises(ValueError, match="at least one block of one token"):
        BlockPool(*size)


def test_a_freed_table_comes_back_in_table_order():
    pool = BlockPool(4, 16)
    blocks = pool.allocate(3)
    pool.free(blocks)
    assert pool.allocate(3).tolist() == blocks.tolist()


def test_freeing_twice_is_an_error_and_frees_nothing():
    pool = BlockPool(4, 16)
    kept, given_back = pool.allocate(1), pool.allocate(1)
    pool.free(given_back)
    with pytest.raises(ValueError, match="block 1 is freed twice"):
        pool.free(np.concatenate([kept, given_back]))
    assert pool.num_free == 3
    pool.free(kept)


def test_naming_a_block_twice_in_one_call_is_an_error():
    pool = BlockPool(4, 16)
    (block,) = pool.allocate(1).tolist()
    pool.share([block])
    for call in (pool.free, pool.share, lambda blocks: pool.register(blocks, hashes(1, 2))):
        with pytest.raises(ValueError, match="named twice"):
            call([block, block])
    pool.free([block])
    pool.free([block])
    assert pool.num_free == 4


def test_a_shared_block_is_free_when_its_last_owner_gives_it_up():
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.free(blocks)
    assert pool.num_free == 3
    pool.free(blocks[:1])
    assert pool.num_free == 4


def test_a_match_is_the_longest_leading_run():
    pool = BlockPool(8, 16)
    blocks = cached(pool, 1, 2, 3)
    assert pool.match(hashes(1, 2, 3)).tolist() == blocks
    assert pool.match(hashes(1, 9, 3)).tolist() == blocks[:1]
    assert pool.match(hashes(9, 1)).tolist() == []
    assert pool.num_free == 8


def test_a_match_finds_blocks_that_are_in_use():
    pool = BlockPool(8, 16)
    running = pool.allocate(2)
    pool.register(running, hashes(1, 2))
    ended = cached(pool, 3)
    found = pool.match(hashes(1, 2, 3))
    assert found.tolist() == [*running.tolist(), *ended]
    assert pool.num_unowned(found) == 1
    pool.share(found)
    assert pool.num_free == 5
    assert pool.num_unowned(found) == 0


def test_empty_blocks_go_before_cached_ones():
    pool = BlockPool(4, 16)
    blocks = cached(pool, 1, 2)
    assert sorted(pool.allocate(2).tolist()) == [2, 3]
    assert pool.match(hashes(1, 2)).tolist() == blocks


def test_the_least_recently_freed_table_is_evicted_first_and_its_tail_before_its_head():
    pool = BlockPool(4, 16)
    cached(pool, 1, 2)
    cached(pool, 3, 4)
    pool.allocate(1)
    assert len(pool.match(hashes(1, 2))) == 1
    pool.allocate(1)
    assert len(pool.match(hashes(1, 2))) == 0
    assert len(pool.match(hashes(3, 4))) == 2


def test_sharing_makes_a_block_recently_used():
    pool = BlockPool(4, 16)
    cached(pool, 1, 2)
    cached(pool, 3, 4)
    again = pool.match(hashes(1, 2))
    pool.share(again)
    pool.free(again)
    pool.allocate(2)
    assert len(pool.match(hashes(1, 2))) == 2
    assert len(pool.match(hashes(3, 4))) == 0


def test_looking_ahead_evicts_no_more_than_was_asked_for():
    pool = BlockPool(512, 16)
    blocks = cached(pool, *range(512))
    pool.allocate(1)
    found = pool.match(hashes(*range(512)))
    assert found.tolist() == blocks[:-1]
    pool.share(found)
    assert pool.num_free == 0


def test_what_the_next_blocks_were_going_to_be_is_forgotten_when_they_are_shared():
    pool = BlockPool(4, 16)
    first, second, third, fourth = pool.allocate(4)
    pool.register([first, second, third, fourth], hashes(1, 2, 3, 4))
    for block in (first, second, third, fourth):
        pool.free([block])
    assert pool.allocate(1).tolist() == [first]
    pool.share(pool.match(hashes(2)))
    assert pool.allocate(2).tolist() == [third, fourth]
    assert pool.num_free == 0


def test_a_hash_stays_with_the_block_that_has_it():
    pool = BlockPool(4, 16)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.register(first, hashes(1))
    pool.register(second, hashes(1))
    assert pool.match(hashes(1)).tolist() == first.tolist()
    pool.free(second)
    assert pool.allocate(1).tolist() == second.tolist(), "a copy that cannot be found is empty, not cached"


def test_a_block_keeps_its_hash():
    pool = BlockPool(4, 16)
    blocks = pool.allocate(1)
    pool.register(blocks, hashes(1))
    pool.register(blocks, hashes(2))
    assert len(pool.match(hashes(1))) == 1
    assert len(pool.match(hashes(2))) == 0


def test_content_that_was_evicted_can_be_registered_again_for_another_block():
    pool = BlockPool(2, 16)
    cached(pool, 1)
    cached(pool, 2)
    both = pool.allocate(2)
    pool.register(both[1:], hashes(1))
    assert pool.match(hashes(1)).tolist() == both[1:].tolist()
    assert len(pool.match(hashes(2))) == 0


def test_only_owned_blocks_can_be_registered():
    pool = BlockPool(2, 16)
    with pytest.raises(ValueError, match="have an owner"):
        pool.register([0], hashes(1))
    assert len(pool.match(hashes(1))) == 0


def test_blocks_and_hashes_are_registered_one_to_one():
    pool = BlockPool(2, 16)
    blocks = pool.allocate(2)
    with pytest.raises(ValueError, match="2 blocks but 1 hashes"):
        pool.register(blocks, hashes(1))
    assert len(pool.match(hashes(1))) == 0


def test_a_match_that_was_evicted_meanwhile_cannot_be_shared():
    pool = BlockPool(2, 16)
    cached(pool, 1, 2)
    found = pool.match(hashes(1, 2))
    pool.free(pool.allocate(1))
    with pytest.raises(ValueError, match="share what `match` returned at once"):
        pool.share(found)
    assert pool.num_free == 2


def test_many_blocks_freed_and_shared_in_turn_keep_their_order_of_eviction():
    pool = BlockPool(8, 16)
    tables = [cached(pool, first, first + 1) for first in range(0, 8, 2)]
    for turn in range(50):
        table = pool.match(hashes(2 * (turn % 3), 2 * (turn % 3) + 1))
        pool.share(table)
        pool.free(table)
    # The fourth table was never shared; after it come the others as they were last freed: 2, 0, 1.
    order = [3, 2, 0, 1]
    assert pool.allocate(8).tolist() == [block for index in order for block in reversed(tables[index])]
