"""Waiting for something that happens soon."""

import asyncio


async def until(condition, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (conditions of many kinds)
            await asyncio.sleep(0.01)
