"""Limits and the choice of an engine by prompts, over all gateway pods, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from hashlib import blake2b
from itertools import cycle

import pytest

from inflight_gateway.request.prefix import HASH_BYTES
from inflight_gateway.types import RateLimits
from tests.gateway.virtual.engine import Shape
from tests.gateway.virtual.fleet import Fleet, run

PER_MINUTE = 600
MINUTE_S = 60.0
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 2
REQUEST_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS


async def steadily(fleet, minutes, happens=lambda at: None):
    """Sends three times the limit to all pods in turn; returns the number of admitted requests in each minute."""
    loop, turn, tasks = asyncio.get_running_loop(), cycle(fleet.pods), []
    begin = loop.time()
    for number in range(3 * PER_MINUTE * minutes):
        await asyncio.sleep(begin + number * MINUTE_S / 3 / PER_MINUTE - loop.time())
        happens(loop.time() - begin)
        pod = next(turn)
        if pod.alive:
            tasks.append(asyncio.create_task(fleet.generate(pod, "acme", PROMPT_TOKENS, OUTPUT_TOKENS)))
    await asyncio.wait(tasks, timeout=10.0)
    return Counter(int((each.at - begin) / MINUTE_S) for each in fleet.started)


REQUESTS, TOKENS = RateLimits(requests_per_minute=PER_MINUTE), RateLimits(tokens_per_minute=PER_MINUTE * REQUEST_TOKENS)


@pytest.mark.parametrize(("limits", "pods"), [(REQUESTS, 1), (TOKENS, 2), (REQUESTS, 3)])
def test_limits_over_all_pods_are_exact_to_one_percent(limits, pods):
    async def main():
        fleet = Fleet(Shape(slots=512), pods, default_limits=limits)
        await fleet.start()
        return await steadily(fleet, 3), fleet.refused

    admitted, refused = run(main)
    assert [abs(admitted[minute] - PER_MINUTE) <= PER_MINUTE / 100 for minute in range(3)] == [True] * 3
    assert {status for _, status in refused} == {429}


@pytest.mark.parametrize("pods", [2, 3])
def test_when_the_owner_is_lost_a_tenant_gains_at_most_the_limit_of_one_minute(pods):
    async def main():
        fleet = Fleet(Shape(slots=512), pods, default_limits=RateLimits(requests_per_minute=PER_MINUTE))
        await fleet.start()
        owner = fleet.owner

        def happens(at):
            if at > 90 and owner.alive:
                owner.kill()

        return await steadily(fleet, 4, happens)

    admitted = run(main)
    assert 3 * PER_MINUTE <= sum(admitted.values()) <= 5 * PER_MINUTE * 1.01


def test_turns_of_conversations_find_their_prefixes_with_a_new_connection_each_as_at_one_pod():
    def hits(pods):
        async def main():
            fleet, rng = Fleet(Shape(slots=8, replicas=4), pods), random.Random(1)
            await fleet.start()
            turn = cycle(fleet.pods)
            found = Counter()

            async def conversation(name):
                before = ""
                await asyncio.sleep(rng.uniform(0, 20))
                for length in range(1, 8):
                    blocks = b"".join(
                        blake2b(f"{name} {number}".encode(), digest_size=HASH_BYTES).digest()
                        for number in range(4 * length)
                    )
                    sent = await fleet.generate(next(turn), "", 256 * length, 24, blocks=blocks)
                    found[sent.engine == before] += 1
                    before = sent.engine
                    await asyncio.sleep(rng.uniform(0.5, 5))

            await asyncio.gather(*(conversation(number) for number in range(40)))
            return found[True] / found.total()

        return run(main)

    one = hits(1)
    assert one > 0.6  # by chance a quarter
    for pods in (2, 3):
        assert abs(hits(pods) / one - 1) <= 0.05
